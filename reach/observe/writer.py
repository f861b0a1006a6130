"""Writing that never holds up a call.

The event loop's thread appends to a bounded queue, which is a list operation; one thread of its own takes
what has gathered, a batch at a time, and does the slow part (encoding, files). The loop pays well under a
microsecond. When the queue is full the item is counted instead of kept, and the count goes into the next
batch, so that what is missing is known. `close` writes what is left; it also runs when the interpreter ends.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from reach.observe.redaction import safe_cause

Item = TypeVar("Item")

_log = logging.getLogger("reach.observe")

GATHER_S: Final = 0.05
"""How long a batch gathers before it is written: 20 wake-ups a second under load, none without."""

PATIENCE_S: Final = 5.0
"""How long `flush` and `close` wait for a slow disk."""

_QUIET_S: Final = 60.0


class BackgroundWriter(Generic[Item]):
    """A bounded queue and the thread that empties it into `write(batch, dropped)`.

    `dropped` is how many items were lost since the last batch that could be written: they found no room, or
    `write` raised. Such an exception is counted in `lost` and logged at most once a minute. The thread starts
    with the first item.
    """

    def __init__(self, write: Callable[[list[Item], int], None], *, name: str, limit: int = 20_000) -> None:
        self._write = write
        self._name = name
        self._limit = limit
        self._queue: deque[Item] = deque()
        self._dropped = 0
        self._accepted = 0
        self._finished = 0
        self._awake = False
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._closing = False
        self._state = threading.Condition()
        self._thread: threading.Thread | None = None
        self._complained_at: float | None = None
        self.lost = 0

    def put(self, item: Item) -> bool:
        """Queue an item; False when there was no room for it or the writer is closed. Never blocks."""
        if len(self._queue) >= self._limit or self._closing:
            self._dropped += 1
            self.lost += 1
            return False
        self._queue.append(item)
        self._accepted += 1
        if not self._awake:
            self._awake = True
            if self._thread is None:
                self._start()
            self._wake.set()
        return True

    def __len__(self) -> int:
        return len(self._queue)

    def flush(self, timeout_s: float = PATIENCE_S) -> bool:
        """Wait until all that is queued now is written; False when that took longer than `timeout_s`.

        This blocks its thread: it is for the end of a program and for tests, not for a running loop.
        """
        with self._state:
            target = self._accepted
            self._hurry.set()
            return self._state.wait_for(lambda: self._finished >= target, timeout_s)

    def close(self, timeout_s: float = PATIENCE_S) -> None:
        """Write what is left and end the thread; later items are counted as lost. Blocks until done."""
        if self._closing:
            return
        self._closing = True
        atexit.unregister(self.close)
        self._hurry.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _start(self) -> None:
        with self._state:
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        atexit.register(self.close)
        self._thread.start()

    def _run(self) -> None:
        closing = False
        while not closing:
            self._wake.wait()
            self._wake.clear()
            self._hurry.wait(GATHER_S)
            closing = self._closing
            if not closing:
                self._hurry.clear()
            # First the flag, then the queue: an item that comes in between wakes the thread again.
            self._awake = False
            self._write_out()

    def _write_out(self) -> None:
        batch: list[Item] = []
        while self._queue:
            batch.append(self._queue.popleft())
        dropped, self._dropped = self._dropped, 0
        if batch or dropped:
            try:
                self._write(batch, dropped)
            except Exception as error:  # noqa: BLE001 - whatever a sink does, calls go on and it is tried again
                self.lost += len(batch)
                self._dropped += len(batch) + dropped
                self._complain(error)
        with self._state:
            self._finished += len(batch)
            self._state.notify_all()

    def _complain(self, error: Exception) -> None:
        now = time.monotonic()
        if self._complained_at is None or now - self._complained_at >= _QUIET_S:
            self._complained_at = now
            _log.error("%s cannot write (%d lost so far): %s", self._name, self.lost, safe_cause(error))
