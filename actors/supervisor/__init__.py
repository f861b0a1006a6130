"""Knows who is there and how well they do, and decides where calls go."""
