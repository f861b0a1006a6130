"""Reach: call."""
