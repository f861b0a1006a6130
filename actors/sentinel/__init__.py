"""Sees at once when an agent's connection ends, and tells its callers."""
