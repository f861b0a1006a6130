"""What passes between the loop and a thread that runs a handler.

`Work` is one call: it goes into a thread with a copy of its caller's context variables, and its outcome comes
back into the loop. `Feed` hands the items of a generator over as they come, a few ahead of the reader and no
more. Both outlive their caller: a thread cannot be stopped, only left alone (behaviour CALL-4).
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any, Final

AHEAD: Final = 4
"""Items that a generator in a thread may be ahead of its reader."""


class Work:
    """One piece of work for a thread. `deliver(value, error)` is called in the loop when it has ended."""

    __slots__ = ("call", "deliver", "loop", "unwanted")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        call: Callable[[], Any],
        deliver: Callable[[Any, BaseException | None], None],
    ) -> None:
        self.loop = loop
        self.call = contextvars.copy_context().run, call
        self.deliver = deliver
        self.unwanted = False

    def do(self) -> None:
        """Run it, in a thread."""
        value: Any = None
        error: BaseException | None = None
        if not self.unwanted:  # Given up before a thread was free: never started.
            enter, call = self.call
            try:
                value = enter(call)
            except BaseException as raised:  # noqa: BLE001 - it belongs to whoever awaits the result
                error = _fit_for_a_future(raised)
        try:
            self.loop.call_soon_threadsafe(self.deliver, value, error)
        except RuntimeError:
            return  # The loop has ended: nobody is left to tell.


class Feed:
    """Hands the items of a generator from its thread to the loop, a few ahead."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.items: asyncio.Queue[tuple[Any, BaseException | None, bool]] = asyncio.Queue()
        self._loop = loop
        self._room = threading.Semaphore(AHEAD)
        self._stopped = False

    def pump(self, begin: Callable[[], Any]) -> None:
        """Iterate, in the thread."""
        generator = begin()
        try:
            for item in generator:
                self._room.acquire()
                if self._stopped:
                    return
                self._loop.call_soon_threadsafe(self.items.put_nowait, (item, None, False))
        finally:
            generator.close()

    def taken(self) -> None:
        """Make room for one more."""
        self._room.release()

    def stop(self) -> None:
        """Ask the thread to end at its next item."""
        self._stopped = True
        self._room.release()


def _fit_for_a_future(error: BaseException) -> Exception:
    """Turn what would stop the loop, or a future cannot hold, into an error of the handler."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"the handler raised {type(error).__name__} out of its thread")
