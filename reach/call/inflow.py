"""What arrives of one stream, in order, with its three clocks.

The read loop puts frames in; one reader takes them out. First byte, idle and whole have a clock each
(behaviour STREAM-1): only data counts, pings never reset anything, and time in which the *reader* is busy is
not the producer's. Frames must come numbered from 1 without gaps; what was consumed is given back to the
producer as credit, so that a slow reader slows it down.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from reach.faults import Reason
from reach.wire.reply import Failure, Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from reach.wire.frame import Frame

INITIAL_CREDIT: Final = 256 * 1024
"""Bytes a producer may send before it is given more (behaviour STREAM-3)."""

_GRANT: Final = INITIAL_CREDIT // 4


@dataclass(frozen=True, slots=True)
class StreamClocks:
    """Seconds: for the first data frame, between data frames, and for the whole (behaviour STREAM-1)."""

    first_byte_s: float = 5.0
    idle_s: float = 10.0
    max_duration_s: float = 120.0


class Inflow:
    """Frames of one attempt. `next_data` gives the next datum, or the reply or failure that ended the stream."""

    def __init__(self, *, clocks: StreamClocks, deadline: float, grant: Callable[[int], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._clocks = clocks
        self._deadline = deadline
        self._grant = grant
        self._frames: deque[tuple[Any, int]] = deque()
        self._end: Reply | Failure | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._seq = 0
        self._consumed = 0
        self._last_data = monotonic()
        self.finished_by_far_end = False
        """Whether the producer knows that the stream is over, so that it need not be told."""

    @property
    def began(self) -> bool:
        """Whether any data arrived."""
        return self._seq > 0

    def put(self, frame: Frame, size: int) -> None:
        """Take a frame from the read loop."""
        if self._end is not None:
            return
        if frame.kind == "data":
            if frame.seq <= self._seq:
                return  # While a link is renewed a frame may come over both.
            self._seq += 1
            if frame.seq != self._seq:
                self._finish(Failure.of(Reason.STREAM_CUT, f"frame {self._seq} is missing from the stream"))
                return
            self._frames.append((frame.body, size))
            self._last_data = monotonic()
            self._wake()
        elif frame.kind == "end":
            body = frame.body if isinstance(frame.body, dict) else {}
            if frame.seq != self._seq + 1:
                self._finish(
                    Failure.of(Reason.STREAM_CUT, f"frame {self._seq + 1} is missing from the stream")
                )
                return
            self.finished_by_far_end = True
            self._finish(Reply.from_map({**body, "ok": True}))
        elif frame.kind == "error":
            self.finished_by_far_end = True
            self._finish(frame.failure())

    def settle(self, outcome: Reply | Failure) -> None:
        """Take what ended the call instead of a frame: a plain reply, its deadline, a lost link or instance."""
        if self._end is None:
            if isinstance(outcome, Reply) and outcome.ok and not self.began:
                self._frames.append((outcome if outcome.blob is not None else outcome.data, 0))
                self._seq = 1
            ours = (Reason.DEADLINE, Reason.CANCELLED, Reason.DISCONNECTED)
            self.finished_by_far_end = isinstance(outcome, Reply) or outcome.reason not in ours
            self._finish(outcome)

    def leave(self) -> None:
        """Let go of what was not read, now: in the cycle of a stream and its call it would wait for the collector."""
        self._frames.clear()
        self._grant = _give_nothing

    async def next_data(self) -> tuple[bool, Any]:
        """Give `(True, datum)`, or `(False, reply_or_failure)` once at the end. Never raises but for cancellation.

        A datum that is a `Reply` is one whose data is a blob, still to be fetched.
        """
        while True:
            if self._frames:
                datum, size = self._frames.popleft()
                self._consume(size)
                return True, datum
            if self._end is not None:
                return False, self._end
            late = await self._wait()
            if late is not None:
                self._finish(late)

    async def _wait(self) -> Failure | None:
        """Wait for something to happen; the failure of the clock that ran out, or None."""
        now = monotonic()
        if self.began:
            clock, reason = self._last_data + self._clocks.idle_s, Reason.IDLE_STREAM
        else:
            clock, reason = self._last_data + self._clocks.first_byte_s, Reason.FIRST_BYTE
        if self._deadline <= clock:
            clock, reason = self._deadline, Reason.DEADLINE
        if clock <= now:
            return Failure.of(reason)
        self._waiter = self._loop.create_future()
        timer = self._loop.call_at(clock, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None
        return None

    def _consume(self, size: int) -> None:
        self._consumed += size
        # The reader was busy until now: silence is counted from here, not from when the frame arrived.
        self._last_data = monotonic()
        if self._consumed >= _GRANT:
            self._grant(self._consumed)
            self._consumed = 0

    def _finish(self, outcome: Reply | Failure) -> None:
        self._end = outcome
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _give_nothing(_size: int) -> None:
    """Stand for the producer of a stream that was left."""
