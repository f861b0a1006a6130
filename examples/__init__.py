"""Small programs that a user would copy; each one is run by a test."""
