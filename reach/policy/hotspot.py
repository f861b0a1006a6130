"""Which instance of a hashed lane has far more than its share: a key that everybody asks for (behaviour ROUTE-10).

Hashing places keys, not calls. A key that half of the calls carry makes one instance hot, and adding instances does not
help: so it is told, to somebody who can choose another key or strategy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TIMES: Final = 3.0
"""So many times its share is hot (ROUTE-10)."""

LEAST_CALLS: Final = 100
"""Of fewer calls in all nothing is said: four of five calls may well meet one of ten."""


def hottest(
    calls: Mapping[str, int], weights: Mapping[str, float], *, total: int
) -> tuple[str, float] | None:
    """Give the instance that has most over its share, and how many times that is; None where none is hot.

    Args:
        calls: What each instance had in a span of time, of those that had most.
        weights: What each one should have, relative to the others; who is not named should have none.
        total: All calls of that time.
    """
    whole = sum(weights.values())
    if total < LEAST_CALLS or whole <= 0:
        return None
    times = {
        name: calls.get(name, 0) * whole / (total * weight) for name, weight in weights.items() if weight > 0
    }
    name = max(times, key=lambda one: times[one])
    return (name, times[name]) if times[name] > TIMES else None
