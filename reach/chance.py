"""Random numbers of our own, for jitter and for spreading load; nothing secret is made of them.

The interpreter's shared generator belongs to the program that we run in. A program that seeds it, to make its own
results repeatable, would give all its processes the same jitter, and so bring back at once those whom jitter is to keep
apart; and drawing from it behind the program's back would make what it seeded unrepeatable.
"""

from __future__ import annotations

from random import Random
from typing import Final

_OURS: Final = Random()  # noqa: S311 - spreads load

random: Final = _OURS.random
"""Give the next number in [0, 1)."""

uniform: Final = _OURS.uniform
"""Give the next number between two."""
