"""Noticing that this process stood still, so that it does not do old work when it wakes (design, section 5).

A process that was stopped, or whose loop was blocked, finds in its socket requests whose callers have long gone
elsewhere; being kicked off the broker meanwhile does not help, since what was received is still there. So a
tick of 50 ms is watched: when it comes more than 250 ms late, every request that was not started yet is stale,
and everything that arrives is, until the PONG of a PING that was sent *after* the stall. What the server had
sent before that PONG is old; what comes behind it is new.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Final

from reach.errors import LinkDown

if TYPE_CHECKING:
    from reach.bus.connection import Connection

_log = logging.getLogger("reach.agent")

TICK_S: Final = 0.05
"""How often the loop proves that it runs."""

LATE_S: Final = 0.25
"""A tick that is later than this means that the process stood still."""

PONG_S: Final = 5.0
"""How long the answer to one PING is waited for before another is sent."""


class StallGuard:
    """Says which requests are too old to be started. `stalls` counts how often the process stood still."""

    __slots__ = ("_barrier", "_clearing", "_connection", "_last_tick", "_loop", "_timer", "stalls")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._last_tick = monotonic()
        self._barrier = 0.0
        self._clearing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.stalls = 0

    def start(self) -> None:
        """Watch from now on."""
        self._last_tick = monotonic()
        self._timer = self._loop.call_later(TICK_S, self._tick)

    async def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._clearing is not None:
            self._clearing.cancel()
            await asyncio.wait({self._clearing})
            self._clearing = None

    def is_stale(self, received: float) -> bool:
        """Whether a request that was parsed at `received` (monotonic seconds) and is not started must not be.

        Asked in the read loop for what arrives, and once more just before a handler starts.
        """
        if self._timer is None:
            return False
        self._notice()
        return self._clearing is not None or received < self._barrier

    def link_ended(self) -> None:
        """Everything that came over the ended link and is not started is stale."""
        self._barrier = monotonic()

    def _tick(self) -> None:
        self._notice()
        self._last_tick = monotonic()
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _notice(self) -> None:
        """See whether the last tick is too long ago: then this process stood still."""
        now = monotonic()
        stood_still_s = now - self._last_tick
        if stood_still_s <= TICK_S + LATE_S:
            return
        self._last_tick = now
        self._barrier = now
        self.stalls += 1
        _log.warning(
            "this process stood still for %.1f s: what was not started then is refused as STALE",
            stood_still_s,
        )
        if self._clearing is None:
            # Owned here: ended and awaited by stop().
            self._clearing = self._loop.create_task(self._clear())

    async def _clear(self) -> None:
        """Wait until the server has answered a PING that was sent after the last stall."""
        try:
            while True:
                asked_after = self.stalls
                try:
                    await self._connection.flush(PONG_S)
                except LinkDown:
                    return  # A new link brings nothing old.
                except Exception as error:  # noqa: BLE001 - whatever it is, only a PONG proves that the past is over
                    _log.warning("no PONG after a stall (%s); asking again", type(error).__name__)
                    await asyncio.sleep(TICK_S)  # An error that comes at once must not keep the loop.
                else:
                    self._notice()
                    if self.stalls == asked_after:
                        return
                    # It stood still again meanwhile, and what piled up then stands behind this PONG.
        finally:
            self._barrier = monotonic()
            self._clearing = None
