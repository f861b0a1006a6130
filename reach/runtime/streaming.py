"""Running a handler that yields: a stream of frames, or one list for a caller that does not know frames.

Credit in bytes bounds what is under way (behaviour STREAM-3): a slow reader suspends the generator. While the
generator itself is silent, pings prove that it lives; they are not data and reset no clock. They prove as much
of the reader: one whose process was killed cannot say that it left, but its inbox is gone, and the broker
answers a ping to it with "no responders". So a stream that nobody reads gives its place back in seconds.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from reach import ids
from reach.errors import UpstreamFailure
from reach.faults import Reason
from reach.runtime.job import EndedBy

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from reach.bus.framing import Delivery
    from reach.runtime.answer import Answers
    from reach.runtime.job import Job

INITIAL_CREDIT: Final = 256 * 1024
"""Bytes of a stream that may be under way before its reader has given more."""

PING_S: Final = 5.0
"""A stream that sends nothing for this long, or whose reader is not heard of, sends a ping."""

MAX_COLLECTED: Final = 100_000
"""Parts that are collected for a caller without frames before the answer is refused as too long."""


class StreamRunner:
    """Runs generator handlers of one instance."""

    def __init__(self, answers: Answers, inbox: str) -> None:
        self._answers = answers
        self._inbox = inbox
        self._loop = asyncio.get_running_loop()
        self._pinged: dict[str, Job] = {}

    def reader_is_gone(self, delivery: Delivery) -> None:
        """Take the broker's word (on `<inbox>.<token>`) that nobody listens for a stream's frames any more."""
        job = self._pinged.get(delivery.subject.rpartition(".")[2])
        if job is not None and delivery.no_responders:
            job.stop(EndedBy.CANCEL)

    async def run(
        self, job: Job, args: tuple[Any, ...], kwargs: dict[str, Any], *, on_late: Callable[[], None]
    ) -> Any:
        """Run the generator to its end. Gives the list of its parts for a caller without frames, else None."""
        parts = job.served.executor.iterate(job.served.handler, args, kwargs, on_late=on_late)
        if not job.in_frames:
            async with aclosing(parts):
                return await self._collected(job, parts)
        if job.wants_answer and not job.accepted:
            self._answers.accepted(job)
        job.credit = INITIAL_CREDIT
        token = ids.new_id()
        self._pinged[token] = job
        pinger = _Pinger(self._loop, self._answers, job, answer_to=f"{self._inbox}.{token}")
        try:
            async for part in parts:
                value = job.served.handler.result(part)
                if job.credit <= 0:
                    await self._credited(job)
                job.credit -= self._answers.data(job, value)
        finally:
            pinger.stop()
            del self._pinged[token]
            await parts.aclose()
        return None

    async def _collected(self, job: Job, parts: AsyncGenerator[Any, None]) -> list[Any]:
        collected: list[Any] = []
        async for part in parts:
            collected.append(job.served.handler.result(part))
            if len(collected) > MAX_COLLECTED:
                message = f"{job.served.name} has more than {MAX_COLLECTED} parts: ask for it as a stream"
                raise UpstreamFailure(message, reason=Reason.BAD_RESULT)
        return collected

    async def _credited(self, job: Job) -> None:
        while job.credit <= 0:
            job.credit_waiter = self._loop.create_future()
            try:
                await job.credit_waiter
            finally:
                job.credit_waiter = None


class _Pinger:
    """Sends a ping for each PING_S in which no data frame was sent, or the reader was not heard of."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, answers: Answers, job: Job, *, answer_to: str
    ) -> None:
        self._loop = loop
        self._answers = answers
        self._job = job
        self._answer_to = answer_to
        self._sent = self._granted = 0
        self._timer = loop.call_later(PING_S, self._tick)

    def _tick(self) -> None:
        job = self._job
        if job.sent_frames == self._sent or job.grants == self._granted:
            self._answers.ping(job, answer_to=self._answer_to)
        self._sent, self._granted = job.sent_frames, job.grants
        self._timer = self._loop.call_later(PING_S, self._tick)

    def stop(self) -> None:
        self._timer.cancel()
