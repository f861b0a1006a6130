"""The list of calls whose outcome is unknown: read, told, and resolved once each."""
