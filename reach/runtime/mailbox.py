"""The bounded queue before an actor's one pair of hands.

Putting is synchronous, because the bus hands messages over inside its read loop, and it never waits: a full
mailbox refuses the newest and counts it, and whoever put it decides what that means (a request is answered,
an event is lost and logged). Order is strictly first in, first out, whoever the sender is. A closed mailbox
takes nothing more and still gives out what is in it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import StrEnum
from typing import Final, Generic, TypeVar

T = TypeVar("T")

FAIR_BATCH: Final = 64
"""Items taken in a row without waiting before the reader gives way to the rest of the process. A light
message takes some 10 µs, so this is under a millisecond."""


class Put(StrEnum):
    """What became of an item."""

    TAKEN = "taken"
    FULL = "full"
    CLOSED = "closed"


class MailboxClosed(Exception):
    """The mailbox is closed and empty."""


class Mailbox(Generic[T]):
    """A queue of at most `capacity` items, with one reader.

    Attributes:
        capacity: The most that waits here; reserved items may come on top.
        dropped: How many items were refused because it was full.
        late: How many items came after it was closed.
    """

    __slots__ = ("_closed", "_items", "_reader", "_run", "capacity", "dropped", "late")

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a mailbox has room for at least one message, not {capacity}")
        self.capacity = capacity
        self.dropped = 0
        self.late = 0
        self._items: deque[T] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._closed = False
        self._run = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def closed(self) -> bool:
        """Whether it takes nothing more."""
        return self._closed

    def put(self, item: T, *, reserved: bool = False) -> Put:
        """Add an item, or say why not.

        Args:
            item: What to add.
            reserved: Take it even when full. For what its sender bounds otherwise, such as timers, which have
                at most one tick each in here: a flood of messages must not stop an actor's clock.
        """
        if self._closed:
            self.late += 1
            return Put.CLOSED
        if not reserved and len(self._items) >= self.capacity:
            self.dropped += 1
            return Put.FULL
        self._items.append(item)
        self._wake()
        return Put.TAKEN

    async def get(self) -> T:
        """Take the oldest item, waiting for one. There is one reader, as there is one pair of hands.

        Raises:
            MailboxClosed: it is closed, and everything was taken.
            RuntimeError: somebody else waits here already.
        """
        if self._items:
            self._run += 1
            if self._run >= FAIR_BATCH:
                self._run = 0
                await asyncio.sleep(0)
        while not self._items:
            if self._closed:
                raise MailboxClosed
            if self._reader is not None:
                raise RuntimeError("a mailbox has one reader, and that one waits already")
            self._run = 0
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._items.popleft()

    def close(self) -> None:
        """Take nothing more. What is inside can still be taken; the reader of an empty mailbox is let go."""
        self._closed = True
        self._wake()

    def clear(self) -> list[T]:
        """Take everything out at once, oldest first."""
        items = list(self._items)
        self._items.clear()
        return items

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
