"""One after the other, at the cost of an attribute where nobody else is there.

`asyncio.Lock` costs two coroutines each time; a task's events are nearly always written by one alone. Whoever gives
the turn back hands it on to the one who has waited longest; a waiter that is cancelled in that moment hands it on.

    if not turn.take_now():
        await turn.take()
    try: …
    finally: turn.give_back()
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turn:
    """See the module."""

    __slots__ = ("_taken", "_waiting")

    def __init__(self) -> None:
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] | None = None

    def take_now(self) -> bool:
        """Take the turn if nobody has it; whether it was taken."""
        if self._taken:
            return False
        self._taken = True
        return True

    async def take(self) -> None:
        """Wait for the turn, behind those who wait already; to be called when `take_now` was refused."""
        if self._waiting is None:
            self._waiting = deque()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self.give_back()
            raise  # One that was cancelled while it waited is passed over when its turn comes.

    def give_back(self) -> None:
        """Hand the turn on, or let it lie."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)  # It stays taken.
                return
        self._taken = False
