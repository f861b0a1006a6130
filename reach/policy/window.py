"""What the calls of the last minute came to, in constant time and space.

A ring of buckets of one second each holds how many calls were made, how many failed and how many were slow;
running sums over the ring are plain attributes. The newest bucket lives outside the ring, so recording a call
adds to a few integers and nothing else. When the second changes, that bucket enters the ring and what has
become too old is subtracted from the sums; there is no timer. The ring exists only while there is something
in it: a window without traffic is one small object.

Time is an argument. A clock that stands still, or goes back a little, counts into the newest bucket.

=========  =======  ==================================================================================
span       60 s     BREAK-1: a sliding window of a minute
bucket     1 s      BREAK-1; so the window covers between 59 s and 60 s
=========  =======  ==================================================================================
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

SPAN_S: Final = 60.0
"""What a window covers (BREAK-1)."""

BUCKET_S: Final = 1.0
"""How finely it forgets (BREAK-1)."""

_FIELDS: Final = 3
"""Calls, failures, slow calls: three numbers a bucket, side by side in one array."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over some span. `slow` are calls that succeeded, but took too long; none is counted twice."""

    calls: int = 0
    failures: int = 0
    slow: int = 0


class Window:
    """Counts of the calls of the last `span_s` seconds.

    `calls`, `failures` and `slow` hold as of the last `record` or `roll`. Both costs are constant; see the
    module.
    """

    __slots__ = (
        "_bucket_s",
        "_buckets",
        "_ends",
        "_new_calls",
        "_new_failures",
        "_new_slow",
        "_ring",
        "_tick",
        "calls",
        "failures",
        "slow",
    )

    def __init__(self, *, span_s: float = SPAN_S, bucket_s: float = BUCKET_S) -> None:
        if not 0 < bucket_s <= span_s < float("inf"):
            raise ValueError(
                f"a window has buckets that are positive and not longer than itself, "
                f"not bucket_s={bucket_s} in span_s={span_s}"
            )
        self._bucket_s = bucket_s
        self._buckets = round(span_s / bucket_s)
        self._ring: array[int] | None = None
        self._tick = 0
        self._ends = bucket_s  # When the newest bucket does.
        self._new_calls = self._new_failures = self._new_slow = 0
        self.calls = self.failures = self.slow = 0

    def record(self, now: float, *, failed: bool, slow: bool) -> None:
        """Count one call that ended at `now` (seconds); `slow` is for calls that did not fail."""
        if now >= self._ends:
            self._roll_to(int(now // self._bucket_s))
        self._new_calls += 1
        self.calls += 1
        if failed:
            self._new_failures += 1
            self.failures += 1
        elif slow:
            self._new_slow += 1
            self.slow += 1

    def record_good(self, now: float) -> None:
        """Count one call that was neither failed nor slow: `record` for nearly every call."""
        if now >= self._ends:
            self._roll_to(int(now // self._bucket_s))
        self._new_calls += 1
        self.calls += 1

    def roll(self, now: float) -> None:
        """Forget what is older than the span at `now`."""
        if now >= self._ends:
            self._roll_to(int(now // self._bucket_s))

    def recent(self, now: float, span_s: float) -> Totals:
        """Count the newest `span_s` seconds alone, the current bucket included, at most the whole window.

        Costs as much as it has buckets to look at.
        """
        self.roll(now)
        calls, failures, slow = self._new_calls, self._new_failures, self._new_slow
        ring = self._ring
        if ring is not None:
            wanted = min(max(1, round(span_s / self._bucket_s)), self._buckets)
            for tick in range(self._tick - wanted + 1, self._tick):
                at = tick % self._buckets * _FIELDS
                calls += ring[at]
                failures += ring[at + 1]
                slow += ring[at + 2]
        return Totals(calls, failures, slow)

    def clear(self) -> None:
        """Forget everything."""
        self._ring = None
        self._new_calls = self._new_failures = self._new_slow = 0
        self.calls = self.failures = self.slow = 0

    def _roll_to(self, tick: int) -> None:
        """Put the newest bucket into the ring, and subtract what the buckets up to `tick` push out."""
        old = self._tick
        if tick <= old:  # Rounding may put the end of a bucket into that bucket.
            return
        self._tick = tick
        self._ends = (tick + 1) * self._bucket_s
        buckets = self._buckets
        if tick - old >= buckets:
            self.clear()
            return
        if not self.calls:
            return
        ring = self._ring
        if ring is None:
            ring = self._ring = array("I", bytes(buckets * _FIELDS * array("I").itemsize))
        at = old % buckets * _FIELDS
        ring[at], ring[at + 1], ring[at + 2] = self._new_calls, self._new_failures, self._new_slow
        self._new_calls = self._new_failures = self._new_slow = 0
        for passed in range(old + 1, tick + 1):
            at = passed % buckets * _FIELDS
            if ring[at]:
                self.calls -= ring[at]
                self.failures -= ring[at + 1]
                self.slow -= ring[at + 2]
                ring[at] = ring[at + 1] = ring[at + 2] = 0
        if not self.calls:
            self._ring = None
