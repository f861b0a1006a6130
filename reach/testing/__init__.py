"""Reach: testing."""
