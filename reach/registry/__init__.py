"""Reach: registry."""
