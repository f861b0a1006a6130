"""Reach: cli."""
