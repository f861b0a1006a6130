"""The system's own actors. They stand above `reach`, never know each other, and speak by message only."""
