"""How many retries a lane bears: a share of its calls, so that a failing lane is not asked twice as much (RETRY-6).

One budget a lane and caller. Calls and retries of the last ten seconds are counted in buckets of one; a retry is
allowed while, with it, retries stay within the share of calls, or while fewer than the floor were made in the
running second. The floor is for quiet lanes: there 20 % of nothing would forbid every retry.

=========  ==========================  ===================
what       number                      where it comes from
=========  ==========================  ===================
share      20 % of the lane's calls    RETRY-6
floor      3 retries a second          RETRY-6
span       10 s, in buckets of 1 s     RETRY-6; ours
=========  ==========================  ===================

Constant cost and constant size: adding one to a number while the second lasts, ten buckets at most when a new one
begins. A clock that stands still or goes back a little is counted as the running second.
"""

from __future__ import annotations

import math
from typing import Final

SHARE: Final = 0.20
FLOOR_PER_S: Final = 3
SPAN_S: Final = 10
BUCKET_S: Final = 1.0


class RetryBudget:
    """The calls and retries of one lane, as one caller made them.

    `calls` and `retries` are the sums over the span as it was at the last question.
    """

    __slots__ = ("_calls", "_ends", "_index", "_retries", "calls", "floor_per_s", "retries", "share")

    def __init__(self, *, share: float = SHARE, floor_per_s: int = FLOOR_PER_S, span_s: int = SPAN_S) -> None:
        """Raises `ValueError`: a number is out of its range."""
        if not (0 <= share <= 1 and floor_per_s >= 0 and span_s >= 1):
            raise ValueError(
                "share is within 0 and 1, floor_per_s 0 or more, span_s whole seconds from 1, "
                f"not {share}, {floor_per_s} and {span_s}"
            )
        self.share = share
        self.floor_per_s = floor_per_s
        self.calls = 0
        self.retries = 0
        self._calls = [0] * span_s
        self._retries = [0] * span_s
        self._index = 0  # Of the running second, counted from the clock's zero.
        self._ends = -math.inf

    def call(self, now: float) -> None:
        """Count a call (not its retries) at `now` seconds."""
        if now >= self._ends:
            self._roll(now)
        self.calls += 1
        self._calls[self._index % len(self._calls)] += 1

    def may_retry(self, now: float) -> bool:
        """Whether one more retry is within the budget."""
        if now >= self._ends:
            self._roll(now)
        if self.retries + 1 <= self.calls * self.share:
            return True
        return self._retries[self._index % len(self._retries)] < self.floor_per_s

    def retried(self, now: float) -> None:
        """Count a retry that was begun."""
        if now >= self._ends:
            self._roll(now)
        self.retries += 1
        self._retries[self._index % len(self._retries)] += 1

    def _roll(self, now: float) -> None:
        """Go to the second of `now`; what left the span no longer counts."""
        index = math.floor(now / BUCKET_S)
        size = len(self._calls)
        first = max(self._index + 1, index - size + 1) if self._ends > -math.inf else index
        for passed in range(first, index + 1):
            at = passed % size
            self.calls -= self._calls[at]
            self.retries -= self._retries[at]
            self._calls[at] = self._retries[at] = 0
        self._index = index
        self._ends = (index + 1) * BUCKET_S
