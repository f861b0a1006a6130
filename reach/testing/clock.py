"""A clock that tests move.

Code that takes a `reach.clock.Clock` sleeps on it until the test says that time went by, so a test of a
30-second lease takes no seconds. `advance` moves time at once; `run_for` moves it from one sleeper's due time
to the next and lets the woken tasks run in between, which is what a real clock would have done.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import Final

_SETTLE_TURNS: Final = 20
"""Turns of the loop given to woken tasks; each `await` of something ready takes one."""


class ManualClock:
    """Time that stands still until it is moved, in seconds; `epoch` is what `time()` begins at."""

    __slots__ = ("_epoch", "_now", "_order", "_sleepers", "_start")

    def __init__(self, *, start: float = 1_000.0, epoch: float = 1_735_689_600.0) -> None:
        self._start = start
        self._now = start
        self._epoch = epoch
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        """Seconds that only grow."""
        return self._now

    def time(self) -> float:
        """Seconds since the epoch, moved along with `monotonic`."""
        return self._epoch + (self._now - self._start)

    @property
    def sleeping(self) -> int:
        """How many tasks sleep on this clock."""
        return sum(not future.done() for _, _, future in self._sleepers)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was moved that far; 0 or less only gives way to other tasks."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), future))
        await future

    def advance(self, seconds: float) -> None:
        """Move time by `seconds` at once and wake everyone who is due, in the order of their due times.

        Raises `ValueError` for a negative number: time does not go back.
        """
        if seconds < 0:
            raise ValueError(f"time only moves forward; {seconds!r} seconds would move it back")
        self._move_to(self._now + seconds)

    async def run_for(self, seconds: float) -> None:
        """Move time by `seconds`, stopping at each due time to let the woken tasks run (and sleep anew)."""
        if seconds < 0:
            raise ValueError(f"time only moves forward; {seconds!r} seconds would move it back")
        end = self._now + seconds
        await self._settle()
        while (due := self._next_due()) is not None and due <= end:
            self._move_to(due)
            await self._settle()
        self._move_to(end)
        await self._settle()

    def _next_due(self) -> float | None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    def _move_to(self, moment: float) -> None:
        self._now = moment
        while self._sleepers and self._sleepers[0][0] <= moment:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)

    @staticmethod
    async def _settle() -> None:
        for _ in range(_SETTLE_TURNS):
            await asyncio.sleep(0)
