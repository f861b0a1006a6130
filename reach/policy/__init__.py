"""Reach: policy."""
