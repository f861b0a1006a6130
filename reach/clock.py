"""Time as an argument.

Policies take `now` as a number; what must read a clock takes a `Clock`, so that tests can hand in one
that they move themselves (`reach.testing.ManualClock`). nats-py is asyncio-only, so the clock of a
structured-concurrency library cannot be swapped underneath it: this one is explicit instead.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, Protocol


class Clock(Protocol):
    """What the runtime asks of time. All values are seconds."""

    def monotonic(self) -> float:
        """Seconds that only grow; meaningless across processes."""
        ...

    def time(self) -> float:
        """Seconds since the epoch, UTC."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`; a manual clock waits until it was moved that far."""
        ...


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def monotonic(self) -> float:
        """Read `time.monotonic`, the clock that asyncio's loop uses too."""
        return time.monotonic()

    def time(self) -> float:
        """Read the wall clock."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Sleep in the running loop."""
        await asyncio.sleep(seconds)


SYSTEM: Final = SystemClock()
"""The one system clock."""
