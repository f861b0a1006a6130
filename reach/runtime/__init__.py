"""Reach: runtime."""
