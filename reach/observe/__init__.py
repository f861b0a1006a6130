"""Reach: observe."""
