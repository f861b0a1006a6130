"""A distribution of latencies in a fixed, small space, whose quantiles are right to within 5 %.

The buckets grow geometrically, so that every value lies within the same relative distance of its bucket's
middle, however small or large it is; adding is one logarithm and one increment. This is the idea of DDSketch
(C. Masson, J. Rim, H. Lee: "DDSketch: a fast and fully-mergeable quantile sketch with relative-error
guarantees", VLDB 2019), with a fixed range instead of collapsing buckets. All sketches have the same buckets,
so those of many callers add up to exactly the sketch of all their calls.

===============  ===================  ================================================================
relative error   5 %                  a breaker asks for "3 × usual"; finer buckets would only be larger
range            10 µs to 2 h 46 min  what is outside counts into the first or last bucket
buckets          209                  follows from both; there are none until the first call
===============  ===================  ================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

RELATIVE_ERROR: Final = 0.05
"""A quantile is within this share of the true one, inside the range."""

LEAST_MS: Final = 0.01
MOST_MS: Final = 1e7

_GAMMA: Final = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_SCALE: Final = 1 / math.log(_GAMMA)
_SHIFT: Final = 1 - math.log(LEAST_MS) * _SCALE
# Bucket 0 holds everything up to LEAST_MS, bucket i what lies in (LEAST_MS × γ^(i-1), LEAST_MS × γ^i].
BUCKETS: Final = int(math.log(MOST_MS) * _SCALE + _SHIFT) + 1
_LAST: Final = BUCKETS - 1
_MIDDLES: Final = tuple(LEAST_MS * _GAMMA**i * 2 / (1 + _GAMMA) if i else LEAST_MS for i in range(BUCKETS))

_MAX_COUNT: Final = 2**40
"""The most that one bucket of a received sketch may hold; a lane makes a call every microsecond for 12 days."""

_log: Final = math.log


class Sketch:
    """Latencies in milliseconds; `count` is how many."""

    __slots__ = ("_buckets", "count")

    def __init__(self) -> None:
        self._buckets: list[int] | None = None
        self.count = 0

    def add(self, ms: float) -> None:
        """Take in one latency.

        Raises:
            ValueError: it is NaN.
        """
        if ms < MOST_MS:
            i = int(_log(ms) * _SCALE + _SHIFT) if ms > LEAST_MS else 0
        elif ms >= MOST_MS:
            i = _LAST
        else:
            raise ValueError("a latency is a number of milliseconds, not NaN")
        buckets = self._buckets
        if buckets is None:
            buckets = self._buckets = [0] * BUCKETS
        buckets[i] += 1
        self.count += 1

    def merge(self, other: Sketch) -> None:
        """Take in everything that `other` holds; it stays as it is."""
        theirs = other._buckets
        if theirs is None:
            return
        ours = self._buckets
        if ours is None:
            ours = self._buckets = [0] * BUCKETS
        for i, n in enumerate(theirs):
            if n:
                ours[i] += n
        self.count += other.count

    def quantile(self, q: float) -> float | None:
        """Give the latency in milliseconds that a share `q` of all lie at or below; None without any.

        Raises:
            ValueError: `q` is not within [0, 1].
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q is a share within [0, 1], not {q}")
        if self._buckets is None:
            return None
        rank = max(1, math.ceil(q * self.count))
        seen = 0
        for i, n in enumerate(self._buckets):
            seen += n
            if seen >= rank:
                return _MIDDLES[i]
        return None

    def clear(self) -> None:
        """Forget everything, and give the buckets back."""
        self._buckets = None
        self.count = 0

    def to_map(self) -> dict[str, Any]:
        """Give the wire form: `{e, i, n}`, the error in percent, the first used bucket, the counts from it on."""
        used = [] if self._buckets is None else [i for i, n in enumerate(self._buckets) if n]
        if self._buckets is None or not used:
            return {"e": RELATIVE_ERROR * 100, "i": 0, "n": []}
        return {"e": RELATIVE_ERROR * 100, "i": used[0], "n": self._buckets[used[0] : used[-1] + 1]}

    @classmethod
    def from_map(cls, m: Mapping[str, Any]) -> Sketch:
        """Read the wire form.

        Raises:
            ValueError: it is none, or one of another resolution, which cannot be added to ours.
        """
        error, first, counts = m.get("e"), m.get("i"), m.get("n")
        if error != RELATIVE_ERROR * 100:
            raise ValueError(
                f"a sketch's e is its relative error in percent, here {RELATIVE_ERROR * 100:g}, not {error!r}"
            )
        if type(first) is not int or not isinstance(counts, list | tuple):
            raise ValueError(
                "a sketch's i is the number of its first bucket, and n the list of counts from it"
            )
        if not 0 <= first <= first + len(counts) <= BUCKETS:
            raise ValueError(f"a sketch has {BUCKETS} buckets, not {len(counts)} from number {first}")
        for n in counts:
            if type(n) is not int or not 0 <= n <= _MAX_COUNT:
                raise ValueError(f"a sketch's counts are whole numbers from 0 to {_MAX_COUNT}, not {n!r}")
        sketch = cls()
        if counts:
            sketch._buckets = [0] * BUCKETS
            sketch._buckets[first : first + len(counts)] = counts
            sketch.count = sum(counts)
        return sketch
