"""Reach: bus."""
