"""An instance that is new, or back after a silence, begins with a part of its share (behaviour LIFE-3).

0.2 for a minute, 0.5 until two minutes have passed, then all. The part is relative to its neighbours, so it is
off by itself where it would make no sense: for the only instance of a lane, and for a lane whose instances all
started together, the warmest has all of its share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

MISSES: Final = 2
"""Missed heartbeats after which an instance that is heard of again warms up (LIFE-3)."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """Steps of (until how many seconds of age, factor), ascending; older than the last is 1."""

    steps: tuple[tuple[float, float], ...] = ((60.0, 0.2), (120.0, 0.5))

    def __post_init__(self) -> None:
        ages = [0.0, *(until_s for until_s, _ in self.steps)]
        factors = [0.0, *(factor for _, factor in self.steps), 1.0]
        rising = all(low < high for low, high in pairwise(ages))
        if not rising or not all(low <= high for low, high in pairwise(factors)):
            raise ValueError(f"steps rise in age and in factor, from 0 to 1, not {self.steps}")
        if self.steps and self.steps[0][1] <= 0:
            raise ValueError("the first factor is more than 0: what gets no calls never warms up")

    def factor(self, age_s: float) -> float:
        """Give the part of its share that something of this age gets. A negative age is 0."""
        return next((factor for until_s, factor in self.steps if age_s < until_s), 1.0)

    def next_step_s(self, age_s: float) -> float:
        """Give the seconds until the factor changes; infinity when it no longer does."""
        return next((until_s - age_s for until_s, _ in self.steps if age_s < until_s), math.inf)

    def age_s(self, factor: float) -> float:
        """Give the age at which this factor begins, or the last one that is not above it."""
        begins_s = [0.0, *(until_s for until_s, _ in self.steps)]
        reached = [*(part for _, part in self.steps), 1.0]
        return max(
            (begin for begin, part in zip(begins_s, reached, strict=True) if part <= factor), default=0.0
        )

    @property
    def length_s(self) -> float:
        """Seconds until all is given."""
        return self.steps[-1][0] if self.steps else 0.0


WARM_UP: Final = Ramp()
"""LIFE-3's steps."""


def begins(*, misses: int, registered: bool) -> bool:
    """Whether an instance warms up from now on: it has just `registered` anew, or was silent for `misses` beats."""
    return registered or misses >= MISSES


def factors(started: Mapping[str, float | None], *, now: float, ramp: Ramp = WARM_UP) -> dict[str, float]:
    """Give each instance of a lane its part, the warmest having all of it.

    Args:
        started: When each began to warm up, on the clock of `now`; None where it is long warm.
        now: Seconds.
        ramp: The steps.
    """
    found = {
        instance: 1.0 if since is None else ramp.factor(now - since) for instance, since in started.items()
    }
    warmest = max(found.values(), default=1.0)
    return {instance: factor / warmest for instance, factor in found.items()}


def next_change_s(started: Mapping[str, float | None], *, now: float, ramp: Ramp = WARM_UP) -> float:
    """Give the seconds until `factors` may say something else; infinity when it will not by time alone."""
    return min(
        (ramp.next_step_s(now - since) for since in started.values() if since is not None), default=math.inf
    )
