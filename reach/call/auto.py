"""`mode="auto"`: a call that is expected, or seen, to take longer than half a minute becomes a task (CALL-11).

Only what is offered as a task can become one. As long as nothing speaks against it such work is submitted at once, and
its end is waited for: it is done once, whoever waits, and for how long. What is known to be quick is called instead,
which costs less; a call that was cut off after all is submitted only where doing it again is safe (RETRY-1).
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from reach.call.context import current
from reach.errors import CallTimeout, LinkDown, ReachError
from reach.faults import Executed, Reason
from reach.policy.sketch import Sketch
from reach.wire import subjects
from reach.wire.reply import Failure, Reply
from reach.wire.task import TaskOrder, TaskState

if TYPE_CHECKING:
    from reach.call.client import Core
    from reach.call.options import CallOptions, Options
    from reach.call.task import Task
    from reach.wire.card import CapabilityCard
    from reach.wire.task import TaskEvent

_log = logging.getLogger("reach.call")

LONG_S: Final = 30.0
"""What takes longer is a task (CALL-11)."""

TIMES_P95: Final = 3
"""So many times the P95 is what a call is expected to take at the most (CALL-11)."""

LEAST: Final = 5
"""Durations from which a P95 means anything here: only its order of magnitude is asked for."""

FORGET_S: Final = 600.0
"""What was seen is forgotten after so long, so that work which has become quick is waited for again."""

MAX_KNOWN: Final = 2000


class TaskReply(Reply, kw_only=True, gc=True):
    """The reply of a call that became a task. While that goes on, `ok` is true, and `data` None: see `task`."""

    handle: Any = None
    pending: bool = False

    @property
    def task(self) -> Any:
        """The task's handle."""
        return self.handle

    def unwrap(self) -> Any:
        """Give `data`, or raise the matching `ReachError`; `CallTimeout` while the task goes on."""
        if self.pending:
            raise CallTimeout(
                f"this has become task {self.handle.id}, which goes on: await reply.task.result()",
                executed=Executed.MAYBE,
                retryable=False,
            )
        return super().unwrap()


class Auto:
    """Makes the calls of one client that may become tasks."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._seen: dict[str, tuple[float, Sketch]] = {}

    async def request(self, capability: str, given: object, options: Options) -> Reply:
        """Make one call, or submit it. Raises only for mistakes of the program."""
        plain = options.merged({"mode": "call"})
        core = self._core
        began = monotonic()
        card = await core.directory.card_for(capability)
        if card is None or not (card.task or card.kind == "task"):
            return await core.outbound.request(capability, given, plain)
        expected_s = self.expected_s(capability)
        if card.kind != "task" and expected_s is not None and expected_s <= LONG_S:
            reply = await self._called(capability, given, plain, card)
            if reply.ok:
                self._note(capability, reply.latency_ms)
            if not _was_cut(reply, plain, card):
                return reply
            self._note(capability, LONG_S * 1000)
        wait_s = 0.0 if expected_s is not None and expected_s > LONG_S else _wait_s(began)
        return await self._submitted(capability, given, plain, began=began, wait_s=wait_s)

    def expected_s(self, capability: str) -> float | None:
        """How long a call takes at the most, as far as anybody has seen; None where nobody has."""
        outbound = self._core.outbound
        known = [lane.breaker.usual_p95_ms for lane in outbound.lanes.known(capability)]
        entry = outbound.routes.entry(capability)
        if entry is not None:
            known += [lane.figures.p95_ms for lane in entry.lanes]
        since, seen = self._seen.get(capability, (0.0, None))
        if seen is not None and monotonic() - since > FORGET_S:
            del self._seen[capability]
        elif seen is not None and seen.count >= LEAST:
            known.append(seen.quantile(0.95))
        slowest_ms = max((p95_ms for p95_ms in known if p95_ms is not None), default=None)
        return None if slowest_ms is None else slowest_ms * TIMES_P95 / 1000

    async def _called(self, capability: str, given: object, plain: Options, card: CapabilityCard) -> Reply:
        allowed_s = plain.timeout_s or card.timeout_s
        bounded: CallOptions = {"timeout_s": LONG_S} if allowed_s is not None and allowed_s > LONG_S else {}
        return await self._core.outbound.request(capability, given, plain.merged(bounded))

    async def _submitted(
        self, capability: str, given: object, plain: Options, *, began: float, wait_s: float
    ) -> Reply:
        tasks = self._core.tasks
        try:
            task = await tasks.submit(capability, given, plain, callback=None, delay_s=None, at=None)
        except ReachError as error:
            return Reply(ok=False, error=Failure.of_error(error), latency_ms=(monotonic() - began) * 1000)
        reply = TaskReply(ok=True, handle=task, pending=True, reach_id=task.reach_id)
        try:
            if wait_s > 0:
                _fill(reply, await task.end(timeout_s=wait_s))
        except CallTimeout:
            _log.debug("a call of %s has become task %s", capability, task.id)
        except ReachError as error:  # Its end cannot be read; it has one all the same.
            _log.warning("the end of task %s cannot be read: %s", task.id, error)
        except asyncio.CancelledError:
            self._give_up(task)
            raise
        reply.latency_ms = (monotonic() - began) * 1000
        if wait_s > 0 and reply.ok:
            self._note(capability, reply.latency_ms)
        return reply

    def _give_up(self, task: Task) -> None:
        """Cancel a task whose caller has left without its handle (CALL-5); whoever has it obeys."""
        order = TaskOrder(source=self._core.connection.who, reason="the caller left")
        try:
            self._core.connection.publish(subjects.task_cancel(task.tenant, task.id), order.pack())
        except LinkDown:
            _log.info("task %s goes on although its caller left: there is no link", task.id)

    def _note(self, capability: str, took_ms: float) -> None:
        if capability not in self._seen and len(self._seen) >= MAX_KNOWN:
            self._seen.clear()
        self._seen.setdefault(capability, (monotonic(), Sketch()))[1].add(took_ms)


def _wait_s(began: float) -> float:
    """How long the end may be waited for: no longer than what surrounds the call."""
    deadline = current().deadline
    return LONG_S if deadline is None else max(0.0, min(LONG_S, deadline - began))


def _was_cut(reply: Reply, plain: Options, card: CapabilityCard) -> bool:
    """Whether a call ended since it took too long for a call, not for its caller, and may be done again."""
    failure = reply.error
    if failure is None or Reason.DEADLINE not in {failure.reason, failure.cause}:
        return False
    if plain.timeout_s is not None and plain.timeout_s <= LONG_S:
        return False
    deadline = current().deadline
    has_time = deadline is None or deadline > monotonic()
    return has_time and (failure.executed is Executed.NO or card.idempotent)


def _fill(reply: TaskReply, end: TaskEvent) -> None:
    """Say in the reply what became of the task."""
    reply.pending = False
    reply.provider, reply.instance, reply.attempt = end.agent_id, end.instance, max(1, end.attempt)
    reply.retried = end.attempt > 1
    if end.state is TaskState.COMPLETED:
        reply.data = end.data
        return
    reply.ok = False
    reply.error = end.error or Failure.of(Reason.UNMAPPED)
