"""Deadlines of many calls on one timer.

A call has its deadline in a slot of 10 ms; the loop holds one timer, for the earliest slot. Adding and
removing are dictionary operations, so a call that is answered in time costs no timer of its own.
Prior art: the hashed timing wheel (Varghese and Lauck, 1987); slots here are a dictionary and a heap,
because a wheel of fixed size would have to turn while nothing is due.
"""

from __future__ import annotations

import heapq
from time import monotonic
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

SLOT_S: Final = 0.01
"""Width of a slot in seconds: a deadline is judged at most this much late."""

LATE_S: Final = 0.1
"""A timer that comes this late means that the process stood still, with answers that came in time unread."""

READ_S: Final = 0.05
"""What reading them is given before anything is judged to be late."""


K = TypeVar("K")


class DeadlineWheel(Generic[K]):
    """Calls `on_due(key)` for each key whose time has come and that was not discarded before."""

    __slots__ = ("_due_slots", "_loop", "_on_due", "_read_first", "_slots", "_timer", "_timer_slot")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[K], None]) -> None:
        self._loop = loop
        self._on_due = on_due
        self._slots: dict[int, set[K]] = {}
        self._due_slots: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_slot = 0
        self._read_first = True

    def __len__(self) -> int:
        return sum(len(keys) for keys in self._slots.values())

    def add(self, key: K, when: float) -> int:
        """Note that `key` is due at loop time `when`; returns the slot to hand back to `discard`."""
        slot = int(when / SLOT_S) + 1
        keys = self._slots.get(slot)
        if keys is None:
            self._slots[slot] = {key}
            heapq.heappush(self._due_slots, slot)
            if self._timer is None or slot < self._timer_slot:
                self._arm()
        else:
            keys.add(key)
        return slot

    def discard(self, key: K, slot: int) -> None:
        """Forget a key that was settled in time; the last of its slot leaves the slot behind, empty, until due."""
        keys = self._slots.get(slot)
        if keys is not None:
            keys.discard(key)

    def close(self) -> None:
        """Stop the timer and forget everything."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._slots.clear()
        self._due_slots.clear()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due_slots:
            self._timer_slot = self._due_slots[0]
            self._timer = self._loop.call_at(self._timer_slot * SLOT_S, self._turn)

    def _turn(self) -> None:
        self._timer = None
        now = monotonic()
        # See LATE_S. Once only: what is not there by then was late.
        if self._read_first and now - self._timer_slot * SLOT_S > LATE_S:
            self._read_first = False
            self._timer = self._loop.call_later(READ_S, self._turn)
            return
        self._read_first = True
        while self._due_slots and self._due_slots[0] * SLOT_S <= now:
            for key in self._slots.pop(heapq.heappop(self._due_slots)):
                self._on_due(key)
        self._arm()
