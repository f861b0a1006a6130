"""What callers know about capabilities: cards, their schemas, and the check that refuses what cannot fit."""
