"""Weighted random choice that costs the same among ten and among ten thousand (behaviour SPEED-3).

Walker's alias method, built as Vose does: n columns of equal width, each split between at most two names, so
that one number names a column and a place in it. The table is built once a revision, in linear time. What is
left of the number after a draw is uniform again, and serves the next draw when the drawn name is excluded.

`EvenPicks` gives numbers that fill [0, 1) more evenly than chance: with them a share of 5 % is 5 % after a few
hundred calls, where chance needs tens of thousands.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Mapping
from typing import Final

_REDRAWS: Final = 3
"""Draws before the names that are not excluded are looked at one by one: each takes digits of the number."""

_GOLDEN: Final = (math.sqrt(5) - 1) / 2


class Weighted:
    """Names with weights. A weight of 0 is never drawn."""

    __slots__ = ("_alias", "_chance", "_count", "_names", "_weights")

    def __init__(self, weights: Mapping[str, float]) -> None:
        for name, weight in weights.items():
            if not 0 <= weight < math.inf:
                raise ValueError(f"the weight of {name} is a finite number of 0 or more, not {weight!r}")
        most = max(weights.values(), default=0.0)
        relative = {name: weight / most for name, weight in weights.items() if weight > 0}
        self._names = tuple(relative)
        self._weights = tuple(relative.values())
        self._count = len(self._names)
        self._chance, self._alias = _columns(self._weights)

    def __len__(self) -> int:
        return self._count

    @property
    def names(self) -> tuple[str, ...]:
        """Those that can be drawn."""
        return self._names

    def draw(self, pick: float, avoid: Collection[str] = ()) -> str | None:
        """Draw a name that is not in `avoid`, with `pick` uniform in [0, 1); None when there is none."""
        count = self._count
        place = pick * count
        column = int(place)
        if not avoid and column < count:  # Nearly every draw.
            return self._names[column if place - column < self._chance[column] else self._alias[column]]
        for _ in range(_REDRAWS):
            place = pick * count
            column = int(place)
            if column >= count:  # Nobody, or a pick so close to 1 that the product was rounded up to `count`.
                if not count:
                    return None
                column = count - 1
            rest = place - column
            chance = self._chance[column]
            if rest < chance:
                name = self._names[column]
                if name not in avoid:
                    return name
                pick = rest / chance
            else:
                name = self._names[self._alias[column]]
                if name not in avoid:
                    return name
                pick = (rest - chance) / (1 - chance) if chance < 1 else 0.0
        return self._scan(pick, avoid)

    def _scan(self, pick: float, avoid: Collection[str]) -> str | None:
        left = [
            (name, weight)
            for name, weight in zip(self._names, self._weights, strict=True)
            if name not in avoid
        ]
        if not left:
            return None
        point = pick * math.fsum(weight for _, weight in left)
        for name, weight in left:
            point -= weight
            if point < 0:
                return name
        return left[-1][0]


def _columns(weights: tuple[float, ...]) -> tuple[array[float], array[int]]:
    """Give, for each column, the part that its own name has and whose the rest is.

    Arrays, since a draw among many then meets two places in memory, not four.
    """
    count = len(weights)
    total = math.fsum(weights)
    chance = [weight * count / total for weight in weights]
    alias = list(range(count))
    light = [column for column, part in enumerate(chance) if part < 1]
    heavy = [column for column, part in enumerate(chance) if part >= 1]
    while light and heavy:
        small, large = light.pop(), heavy[-1]
        alias[small] = large
        chance[large] -= 1 - chance[small]
        if chance[large] < 1:
            light.append(heavy.pop())
    for column in light + heavy:  # What rounding left over is a full column.
        chance[column] = 1.0
    return array("d", chance), array("q", alias)


class EvenPicks:
    """Numbers in [0, 1) that follow the golden ratio from a random start: any share is met within a few calls.

    The start differs from caller to caller, so that many callers with one call each are as good as chance.
    """

    __slots__ = ("_at",)

    def __init__(self, start: float) -> None:
        if not 0 <= start < 1:
            raise ValueError(f"a start lies in [0, 1), not {start!r}")
        self._at = start

    def next(self) -> float:
        """Give the next number."""
        at = self._at + _GOLDEN
        if at >= 1:
            at -= 1
        self._at = at
        return at
