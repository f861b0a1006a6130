"""What one task may spend, as one process sees it: chunks of a number that all processes add to.

Most calls ask nobody (`reach.policy.taskbudget.Chunks`). What has to be asked is asked for all calls that wait, in a
task of its own: a call that is cancelled meanwhile leaves nothing behind but a unit that the next call takes. Where
nobody counts, this process spends its own share of the budget.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Final

from reach.bus.counters import StoreDownError
from reach.policy.taskbudget import COST_CHUNK, LOCAL_SHARE, MOST_CHUNK, Budget, Chunks, Left, Spent

if TYPE_CHECKING:
    from reach.bus.counters import SharedCounts

_log = logging.getLogger("reach.call")

IDLE_S: Final = 1.0
"""A process whose task makes no call for so long gives back what it holds of its calls."""

SPENT_S: Final = 0.02
"""For so long after it was found to be spent a budget is taken to be."""

_MICRO: Final = 1_000_000
"""Costs are counted in millionths."""


class SpentError(Exception):
    """Nothing may be taken any more."""

    def __init__(self, spent: Spent) -> None:
        super().__init__(spent.what)
        self.spent = spent


class TaskPurse:
    """What one task may spend, as this process sees it. Make it where the task's first call is made."""

    def __init__(self, budget: Budget, name: str, shared: SharedCounts) -> None:
        self.inside = 0
        """Calls of the task that this process makes now."""
        self._budget = budget
        self._calls, self._cost = f"{name}.calls", f"{name}.cost"
        self._name = name
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._began = monotonic()
        self._chunks = None if budget.calls is None else Chunks(budget.calls)
        self.own = Chunks(max(1, (budget.calls or 0) // LOCAL_SHARE))
        """This process's share, for when nobody counts."""
        self.own.held = self.own.allowed
        self._spent_cost = 0.0
        self._uncounted = 0.0
        self._waiting = 0
        self._spent_at = -SPENT_S
        self._asking: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._closed = False

    async def take(self) -> Chunks | None:
        """Take a call, and give what it was taken from (`own`: it was not counted). Raises `SpentError`."""
        self._check()
        chunks = self._chunks
        if chunks is None:
            return None
        while not chunks.take():
            now = monotonic()
            if self._shared.numbers.is_on:
                if self.own.take():
                    return self.own
                raise SpentError(Spent("calls", self.own.allowed, self.own.allowed, Left(0)))
            if now - self._spent_at < SPENT_S:
                raise SpentError(Spent("calls", chunks.used, chunks.allowed, self.left()))
            self._waiting += 1
            try:
                await asyncio.shield(self._begin())
            finally:
                self._waiting -= 1
        return chunks

    def give_back(self, chunks: Chunks | None) -> None:
        """Put a call back that was not made, where it was taken from."""
        if chunks is not None:
            chunks.held += 1
            self._spent_at = -SPENT_S

    def charge(self, cost: float) -> None:
        """Note what a call has cost."""
        if self._budget.cost is None or cost <= 0:
            return
        self._spent_cost += cost
        self._uncounted += cost
        if not (self._closed or self._shared.numbers.is_on):
            self._begin()

    def left(self) -> Left:
        """Say what is left, as far as it is known here."""
        budget, chunks = self._budget, self._chunks
        return Left(
            None if chunks is None else max(0, chunks.allowed - chunks.used) + chunks.held,
            None if budget.cost is None else max(0.0, budget.cost - self._spent_cost),
            None if budget.seconds is None else round(max(0.0, budget.seconds - self._age_s()), 3),
        )

    def rest(self) -> None:
        """Nothing of the task is under way here: give back what is held, unless it goes on soon."""
        if self._idle is None and self._chunks is not None and self._chunks.held and not self._closed:
            self._idle = self._loop.call_later(IDLE_S, self._on_idle)

    async def close(self) -> None:
        """Give back what is held, once, and end."""
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
        if self._asking is not None:
            await self._asking
        if not self._shared.numbers.is_on:
            await self._hand_in()

    def _age_s(self) -> float:
        return monotonic() - self._began

    def _check(self) -> None:
        """Look at cost and time. Raises `SpentError`."""
        budget = self._budget
        if budget.cost is not None and self._spent_cost >= budget.cost:
            raise SpentError(Spent("cost", self._spent_cost, budget.cost, self.left()))
        if budget.seconds is not None and self._age_s() >= budget.seconds:
            raise SpentError(Spent("seconds", round(self._age_s(), 3), budget.seconds, self.left()))

    def _begin(self) -> asyncio.Task[None]:
        """Ask, unless that is being done: in a task of its own, which no call's end can end."""
        if self._asking is None:
            self._asking = self._loop.create_task(self._ask(), name=f"reach budget {self._name}")
        return self._asking

    async def _ask(self) -> None:
        try:
            await self._count_cost()
            if self._waiting and self._chunks is not None:
                most = MOST_CHUNK if self._budget.cost is None else COST_CHUNK
                await self._fill(self._chunks, self._chunks.wanted(self._waiting, most=most))
        except StoreDownError:
            return  # Whoever waits takes this process's own share.
        finally:
            self._asking = None

    async def _fill(self, chunks: Chunks, asked: int) -> None:
        over = chunks.told(asked, await self._shared.add(self._calls, asked))
        if over:
            await self._shared.add(self._calls, -over)
        if not chunks.held:
            self._spent_at = monotonic()

    async def _count_cost(self) -> None:
        if self._budget.cost is None:
            return
        uncounted, self._uncounted = self._uncounted, 0.0
        try:
            total = await self._shared.add(self._cost, round(uncounted * _MICRO))
        except StoreDownError:
            self._uncounted += uncounted  # Rather counted twice than not at all.
            raise
        self._spent_cost = total / _MICRO + self._uncounted

    def _on_idle(self) -> None:
        self._idle = None
        if not self.inside and self._asking is None and not self._shared.numbers.is_on:
            self._asking = self._loop.create_task(self._hand_in(), name=f"reach budget {self._name}")

    async def _hand_in(self) -> None:
        """Give back what is held, for other processes."""
        chunks = self._chunks
        try:
            if chunks is not None and chunks.held:
                held, chunks.held = chunks.held, 0
                chunks.used = await self._shared.add(self._calls, -held)
        except StoreDownError as down:
            _log.info("calls of %s could not be given back: %s", self._name, down)
        finally:
            self._asking = None
