"""Tasks that are used again, so that a request which never waits costs no task of its own.

Most handlers answer without suspending, or suspend once; a new task for each would cost more than the rest of
the agent's work on it (creation, registration, a turn of the loop). A *hand* is a task that takes requests from
a queue and runs them one after the other. As soon as one suspends, another hand goes on with the queue, so
requests run as concurrently as with a task each: a call-back looks after the queue once a loop turn, and doubles
the number of hands it starts for as long as they keep suspending.

Python 3.12's eager tasks do this in the interpreter; stepping a coroutine by hand on 3.11 would make its cancel
scopes hit the read loop. What runs in a hand has its own current task as usual. Context variables that a
handler sets must not reach the next request: a hand whose context was changed is not used again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextvars import copy_context
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextvars import Context

_log = logging.getLogger("reach.agent")

MAX_IDLE: Final = 256
"""Hands that are kept while there is nothing to do."""

W = TypeVar("W")


def _nothing() -> None:
    """Do nothing."""


class Crew(Generic[W]):
    """Runs `work(item, task)`, which must not raise, for each item handed to `submit`.

    `enter` sets the context variables that all work finds; `reset` sets those that `work` sets back to what they were.
    `drained` is told whenever a hand finds nothing more to do.
    """

    def __init__(
        self,
        work: Callable[[W, asyncio.Task[None]], Awaitable[None]],
        *,
        enter: Callable[[], None],
        reset: Callable[[], None],
        drained: Callable[[], None] = _nothing,
    ) -> None:
        self._work = work
        self._reset = reset
        self._drained = drained
        self._loop = asyncio.get_running_loop()
        self._queue: deque[W] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._hands: set[asyncio.Task[None]] = set()
        self._plain: Context = copy_context()
        self._plain.run(enter)
        self._plain.run(reset)
        self._looking = False
        self._closed = False
        self._starting = 1

    def submit(self, item: W) -> None:
        """Have an item worked on, from the next turn of the loop."""
        self._queue.append(item)
        if not self._looking:
            self._looking = True
            self._starting = 2
            self._start_one()  # It runs from the next turn on: until then the queue fills.
            self._loop.call_soon(self._look)

    async def close(self, timeout_s: float) -> None:
        """Let hands that are busy finish, at most `timeout_s`, and end the idle ones."""
        self._closed = True
        idle, self._idle = self._idle, []
        for waiting in idle:
            if not waiting.done():
                waiting.set_result(None)
        hands = [hand for hand in self._hands if hand is not asyncio.current_task()]
        if hands:
            await asyncio.wait(hands, timeout=timeout_s)

    def _look(self) -> None:
        """Start hands while there is something to do; whatever was started before has suspended or is done."""
        if not self._queue:
            self._looking = False
            return
        for _ in range(min(self._starting, len(self._queue))):
            self._start_one()
        self._starting *= 2
        self._loop.call_soon(self._look)

    def _start_one(self) -> None:
        while self._idle:
            waiting = self._idle.pop()
            if not waiting.done():
                waiting.set_result(None)
                return
        hand = self._loop.create_task(self._hand(), context=self._plain.copy())
        self._hands.add(hand)
        hand.add_done_callback(self._hands.discard)

    async def _hand(self) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        plain = self._plain
        while True:
            while self._queue:
                await self._work(self._queue.popleft(), task)
                self._reset()
                if copy_context() != plain or task.cancelling():
                    return  # A handler left something behind: the next request gets a fresh hand.
            self._drained()
            if self._closed or len(self._idle) >= MAX_IDLE:
                return
            waiting: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(waiting)
            await waiting  # Cancelled here, the hand belongs to no request: it ends, and another is started.
