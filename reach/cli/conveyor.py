"""The belt of `reach pipe`: lines go in, calls run side by side, answers come out in the order of the lines.

Two bounds hold memory and agents: how many calls are under way, and how many answers may wait for one that is
older and slower. A call that was refused before it started (an agent is full, the link is down) is sent again
for as long as patience lasts; anything else is an answer, written as it is. Lines that an earlier run had sent,
and got no answer for, are sent again only if that is safe.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from reach import ids
from reach.chance import random
from reach.cli import output
from reach.cli.batch import as_task
from reach.cli.exits import usage
from reach.cli.journal import Journal, Past
from reach.cli.params import json_line
from reach.errors import ReachError
from reach.faults import Executed, Reason
from reach.policy.backoff import delay_s
from reach.wire.reply import Failure, Reply

if TYPE_CHECKING:
    from reach.call.client import Bus
    from reach.call.options import CallOptions
    from reach.cli.feed import Feed, Line
    from reach.cli.progress import LineProgress

_ANSWERS_AHEAD = 4
"""Answers that may wait for an older one, as a multiple of the calls under way."""

_WAIT_BASE_S = 0.05
_WAIT_CAP_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do with each line."""

    capability: str
    concurrency: int
    patience_s: float
    stop_on_error: bool
    repeat_unsure: bool
    options: CallOptions
    tasks: bool = False


@dataclass(slots=True)
class Summary:
    """What became of all lines: `answered` in this output, of them `failed`; `earlier` ones by earlier runs."""

    answered: int = 0
    failed: int = 0
    earlier: int = 0
    unsure: int = 0
    stopped: bool = False
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    def to_map(self) -> dict[str, Any]:
        """Give it for programs."""
        names = ("answered", "failed", "earlier", "unsure", "stopped")
        return {**{name: getattr(self, name) for name in names}, "seconds": round(self.seconds, 3)}

    def text(self) -> str:
        """Give it for people."""
        done = (
            f"{output.plural(self.answered, 'line')}: {self.answered - self.failed} ok, {self.failed} failed"
        )
        earlier = f", {self.earlier} of them earlier" if self.earlier else ""
        stopped = ". Stopped at the first failure" if self.stopped else ""
        return f"{done}{earlier}, {self.seconds:.1f} s{stopped}."


class Brake:
    """Stops a belt in order: no line is begun any more, and those under way are answered."""

    def __init__(self) -> None:
        self.pulled = False
        self.loading: asyncio.Task[None] | None = None

    def pull(self) -> None:
        """Stop. May be done before the belt runs."""
        self.pulled = True
        if self.loading is not None:
            self.loading.cancel()


class Sink:
    """Where answers go: a file with its journal, or stdout; and, for lines that failed, their input."""

    def __init__(self, journal: Journal | None, rejects: IO[bytes] | None) -> None:
        self._journal = journal
        self._rejects = rejects
        self.past = Past() if journal is None else journal.past
        self.run = ids.new_id() if journal is None else journal.run
        """Names this run and those that go on with it."""

    def sending(self, content: bytes) -> None:
        """Note that a line is about to be sent."""
        if self._journal is not None:
            self._journal.sending(content)

    def write(self, text: str) -> None:
        """Write one answer."""
        if self._journal is None:
            output.line(text)
        else:
            self._journal.write(text)

    def reject(self, content: bytes) -> None:
        """Keep the input of a line that failed, so that it can be run again by itself."""
        if self._rejects is not None:
            self._rejects.write(content + b"\n")
            self._rejects.flush()


@dataclass(frozen=True, slots=True)
class _Answer:
    line: Line
    reply: Reply
    unsure: bool = False
    task_id: str | None = None


async def convey(
    plan: Plan, bus: Bus, feed: Feed, sink: Sink, progress: LineProgress, brake: Brake
) -> Summary:
    """Run every line, until the end of the input or the brake is pulled.

    Raises `Refusal` for an input that is not the one begun with, `OSError` for files.
    """
    belt = _Belt(plan, bus, feed, sink, progress)
    return await belt.run(brake)


class _Belt:
    def __init__(self, plan: Plan, bus: Bus, feed: Feed, sink: Sink, progress: LineProgress) -> None:
        self._plan = plan
        self._bus = bus
        self._feed = feed
        self._sink = sink
        self._progress = progress
        self._slots = asyncio.Semaphore(plan.concurrency)
        self._room = asyncio.Semaphore(plan.concurrency * _ANSWERS_AHEAD)
        self._queue: asyncio.Queue[asyncio.Task[_Answer] | None] = asyncio.Queue()
        past = sink.past
        self._summary = Summary(answered=past.answered, failed=past.failed, earlier=past.answered)
        progress.resume(done=past.answered, failed=past.failed)

    async def run(self, brake: Brake) -> Summary:
        try:
            async with asyncio.TaskGroup() as group:
                loading = brake.loading = group.create_task(self._load(group))
                # Not at the end of `_load`: cancelled before its first step, it would never come there.
                loading.add_done_callback(lambda _: self._queue.put_nowait(None))
                if brake.pulled:
                    loading.cancel()
                group.create_task(self._unload(loading))
        except BaseExceptionGroup as several:
            # One cause is one error: whoever catches it need not know that there were several tasks.
            raise several.exceptions[0] from None
        self._summary.seconds = time.monotonic() - self._summary.began
        return self._summary

    async def _load(self, group: asyncio.TaskGroup) -> None:
        """Put lines on the belt, in order, as room allows."""
        past = self._sink.past
        # A task that is submitted again under its key is the task that it was.
        repeat = (
            self._plan.tasks
            or self._plan.repeat_unsure
            or len(past.sent) == past.answered
            or await self._is_idempotent()
        )
        index = 0
        async for line in self._feed.lines():
            past.check(index, line.content, line.number)
            if index >= past.answered:
                unsure = index < len(past.sent)
                await self._room.acquire()
                await self._slots.acquire()
                if not unsure:
                    self._sink.sending(line.content)
                work = self._call(line, index) if not unsure or repeat else self._unsure(line)
                self._queue.put_nowait(group.create_task(work))
            index += 1
        if index < past.answered:
            raise usage(
                f"The input ends after {output.plural(index, 'line')}; the output already has {past.answered}.",
                fix="Give the same input, another --out, or --overwrite to start over.",
            )

    async def _unload(self, loading: asyncio.Task[None]) -> None:
        """Take answers off the belt, in order, and write them."""
        while (work := await self._queue.get()) is not None:
            answer = await work
            self._room.release()
            self._write(answer)
            if not answer.reply.ok and self._plan.stop_on_error and not self._summary.stopped:
                self._summary.stopped = True
                loading.cancel()

    def _write(self, answer: _Answer) -> None:
        reply = answer.reply
        if not reply.ok:
            # Before the output line: a kill between the two then repeats the one that can be told apart.
            self._sink.reject(answer.line.content)
        self._sink.write(output.compact(_output_line(answer)))
        self._summary.answered += 1
        self._summary.failed += not reply.ok
        self._summary.unsure += answer.unsure
        self._progress.count(ok=reply.ok, position=answer.line.end)

    async def _call(self, line: Line, index: int) -> _Answer:
        try:
            if self._plan.tasks:
                return await self._task(line, index)
            return _Answer(line, await self._answer(line))
        finally:
            self._slots.release()

    async def _task(self, line: Line, index: int) -> _Answer:
        plan = self._plan
        try:
            params = json_line(line.content)
        except ReachError as error:
            return _Answer(line, Reply(ok=False, error=Failure.of_error(error)))
        key = f"{self._sink.run}-{index}"
        reply, task_id = await as_task(
            self._bus, plan.capability, params, plan.options, key=key, patience_s=plan.patience_s
        )
        return _Answer(line, reply, task_id=task_id)

    async def _unsure(self, line: Line) -> _Answer:
        self._slots.release()
        failure = Failure.of(Reason.OUTCOME_UNKNOWN, cause=Reason.CANCELLED.value)
        return _Answer(line, Reply(ok=False, error=failure), unsure=True)

    async def _answer(self, line: Line) -> Reply:
        """Call; while refused before the start, wait and call again."""
        try:
            params = json_line(line.content)
        except ReachError as error:
            return Reply(ok=False, error=Failure.of_error(error))
        give_up_at = time.monotonic() + self._plan.patience_s
        attempt = 1
        while True:
            reply = await self._bus.request(self._plan.capability, params, **self._plan.options)
            wait_s = _wait_s(reply, attempt)
            if wait_s is None or time.monotonic() + wait_s > give_up_at:
                return reply
            attempt += 1
            await asyncio.sleep(wait_s)

    async def _is_idempotent(self) -> bool:
        """Whether every agent that serves it says so."""
        from reach.cli.roster import idempotent

        return await idempotent(self._bus, self._plan.capability)


def _wait_s(reply: Reply, attempt: int) -> float | None:
    """How long to wait before sending again; None when the reply is the answer."""
    error = reply.error
    if reply.ok or error is None or error.executed is not Executed.NO or not error.retryable:
        return None
    jitter = random()
    backoff_s = delay_s(attempt, base_s=_WAIT_BASE_S, jitter=jitter, cap_s=_WAIT_CAP_S)
    return max(backoff_s, (error.retry_after_ms or 0) / 1000)


def _output_line(answer: _Answer) -> dict[str, Any]:
    reply = answer.reply
    told: dict[str, Any] = {"line": answer.line.number, "ok": reply.ok}
    if reply.ok:
        told["data"] = reply.data
    else:
        told["error"] = (reply.error or Failure.of(Reason.UNMAPPED)).to_map()
    if answer.task_id:
        told["task_id"] = answer.task_id
    if reply.instance:
        told["instance"] = reply.instance
    if reply.reach_id:
        told.update(attempt=reply.attempt, latency_ms=round(reply.latency_ms, 3), reach_id=reply.reach_id)
    return told
