"""One task in work: from the queue's message to the event that ends it. `go` is the order of everything.

Claim before anything is done: `running` is written under the guard of what is known of the task, and only whoever
got it written works. Tell before the message is taken out of the queue: the end is an event first, and an
acknowledgement then, so that whatever breaks in between is found by whoever gets the message next.
"""

from __future__ import annotations

import asyncio
import logging
from enum import StrEnum
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from reach import ids
from reach.call import ambient
from reach.call.context import CallContext, Marks, enter
from reach.chance import random
from reach.errors import LinkDown, NotExecuted, NotOnTheWire, ReachError
from reach.faults import Executed, Reason
from reach.policy.tasklife import NOTHING_YET, End, after_failure
from reach.runtime.answer import failure_of
from reach.runtime.refusals import where
from reach.runtime.taskasks import Asks
from reach.runtime.taskclaim import Claim
from reach.runtime.taskcontext import TaskContext
from reach.runtime.tasknotes import Notes
from reach.runtime.tasktelling import GIVEN_UP, TAKEN_AWAY
from reach.runtime.taskwriter import Fenced, TaskWriter
from reach.wire import codec, subjects
from reach.wire.envelope import BlobRef, Envelope
from reach.wire.reply import Failure
from reach.wire.task import TaskEvent, TaskState

if TYPE_CHECKING:
    from reach.bus.workqueue import Work
    from reach.runtime.taskoffer import OfferedTask
    from reach.runtime.worker import Worker

_log = logging.getLogger("reach.tasks")

TASK_TIMEOUT_S: Final = 86_400.0
"""The time of an attempt whose submitter does not say, and whose owner neither: a day."""


class EndedBy(StrEnum):
    """Why a running handler was stopped from outside."""

    DEADLINE = "deadline"
    CANCEL = "cancel"
    STOP = "stop"
    FENCED = "fenced"


_ENDS: Final = {
    EndedBy.DEADLINE: Reason.DEADLINE,
    EndedBy.CANCEL: Reason.CANCELLED,
    EndedBy.STOP: Reason.INSTANCE_GONE,
    EndedBy.FENCED: Reason.INSTANCE_GONE,
}


class TaskRun:
    """See the module. `queued_at` is where its submission stands among the events; 0 for a script's plain work."""

    def __init__(
        self, worker: Worker, offered: OfferedTask, work: Work, submitted: TaskEvent, *, queued_at: int
    ) -> None:
        self.worker = worker
        self.offered = offered
        self.work = work
        self.submitted = submitted
        self.queued_at = queued_at
        self.task_id, self.tenant = submitted.task_id, submitted.tenant
        self.envelope = submitted.envelope or Envelope(type="task")
        self.marks = Marks()
        self.stopping = False
        self.deadline = 0.0
        self.handler_s = 0.0
        self.inside = False
        self.end: TaskEvent | None = None
        self.ended_by: EndedBy | None = None
        self.life = NOTHING_YET
        """What the task was when it was begun."""
        self.holds = False
        """Whether it is ours."""
        # Made when they are looked for. What holds on to its run lives until the garbage collector comes by.
        self._notes: Notes | None = None
        self._asks: Asks | None = None
        self.place_is_held = False
        """Whether the handler still runs: a thread does when its task has ended already."""
        self._began = False
        self._done = False
        self._fence: Fenced | None = None
        self.task: asyncio.Task[None] | None = None
        """Where it runs."""
        self.writer = TaskWriter(
            worker.stream,
            worker.blobs,
            worker.author,
            tenant=self.tenant,
            task_id=self.task_id,
            capability=offered.name,
            sequence=queued_at,
            max_payload=worker.connection.max_payload,
        )

    @property
    def key(self) -> tuple[str, str]:
        """What orders find it by."""
        return self.tenant, self.task_id

    def rename(self, task_id: str) -> None:
        """Take another id: the one that it would have was used before."""
        before, self.task_id = self.key, task_id
        self.writer.task_id = task_id
        self.worker.renamed(self, before)

    @property
    def attempt(self) -> int:
        """Which try it is, from 1."""
        return self.writer.attempt

    @property
    def notes(self) -> Notes:
        """Its progress and checkpoints."""
        if self._notes is None:
            self._notes = Notes(self)
        return self._notes

    @property
    def asks(self) -> Asks:
        """Its questions."""
        if self._asks is None:
            self._asks = Asks(self)
        return self._asks

    @property
    def resumed(self) -> bool:
        """Whether it was begun before."""
        return self.life.attempt > 0

    # -- the order ----------------------------------------------------------------------------------

    async def go(self, *, first: bool) -> None:
        """Work on it. `first`: it has only just been queued, so the claim alone tells whether it is ours."""
        began, unwritten = 0.0, None
        try:
            # 1 find out what it is, and claim it
            try:
                if not await Claim(self).won(first=first):
                    return
            except (ReachError, LinkDown) as error:
                # Nothing was done: it comes again, to whoever is linked then.
                _log.info("task %s was not begun here: %s", self.task_id, str(error) or "the link is down")
                self.work.put_back(1.0)
                return
            began, unwritten = monotonic(), GIVEN_UP
            self.worker.teller.began(self)
            # 2 work
            value, failure = await self._work()
            # 3 write what came of it, 4 and only then take it out of the queue
            await self._tell(value, failure)
            unwritten = None
        except Fenced as fenced:
            unwritten = TAKEN_AWAY
            _log.warning("task %s was taken away: it is %s", self.task_id, fenced.state)
            if fenced.ended:
                self.work.done()
        except (ReachError, LinkDown) as error:
            # Whoever gets the message next reads what was written so far, and decides by it.
            _log.error("task %s is given up here: %s", self.task_id, error)
        finally:
            self.inside = False
            self._done = True
            if self._notes is not None:
                self._notes.close()
            if began:
                self.worker.teller.ended(self, began=began, unwritten=unwritten)

    async def _work(self) -> tuple[Any, Failure | None]:
        """Run the handler; its result, or the failure it ended in. Raises `Fenced`."""
        offered = self.offered
        loop = self.worker.loop
        self.deadline = loop.time() + self._time_s()
        timer = loop.call_at(self.deadline, self.stop, EndedBy.DEADLINE)
        began = 0.0
        try:
            self.inside = True
            params = (
                self.envelope.payload if self.envelope.blob is None else await self._large(self.envelope.blob)
            )
            if self.life.checkpoint is not None:
                await self.notes.restore(self.life.checkpoint)
            context = (
                TaskContext(self, self.worker.bus, self.worker.author.instance)
                if offered.handler.wants_context
                else None
            )
            args, kwargs = offered.handler.arguments(params, context)
            enter(self._call_context())
            ambient.enter(self.worker.bus)
            if self.ended_by is not None:
                raise asyncio.CancelledError
            self._began = self.place_is_held = True
            began = monotonic()
            value = await offered.executor.run(offered.handler, args, kwargs, on_late=self._place_freed)
            self.inside = False  # What is done is done: nothing stops the telling of it.
            result = offered.handler.result(value)
        except asyncio.CancelledError:
            return None, self._ended()
        except Fenced:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is the task's failure
            return None, self._failure(error)
        else:
            return result, None
        finally:
            self.inside = False
            self.handler_s = monotonic() - began if self._began else 0.0
            timer.cancel()

    def _time_s(self) -> float:
        """How long this attempt may take."""
        time_s = self.offered.timeout_s or TASK_TIMEOUT_S
        if self.envelope.expires_at is not None:
            time_s = min(time_s, (self.envelope.expires_at - self.worker.stream.now_ms()) / 1000)
        return max(0.0, time_s)

    async def _large(self, blob: BlobRef) -> dict[str, Any]:
        most = self.offered.card.max_payload_bytes
        return codec.unpack(await self.worker.blobs.get(blob, limit=most))

    def _call_context(self) -> CallContext:
        envelope = self.envelope
        trace = envelope.trace
        return CallContext(
            deadline=self.deadline,
            trace_id=ids.trace_id() if trace is None else trace.trace_id,
            span_id=None if trace is None else trace.span_id,
            started_at=0 if trace is None else trace.started_at,
            session_id=envelope.session_id,
            tenant=envelope.tenant,
            task_id=self.task_id,
            agent_id=self.worker.author.agent_id,
            trigger=envelope.trigger,
            chain=(self.offered.name,),
            marks=self.marks,
        )

    # -- stopping -----------------------------------------------------------------------------------

    def stop(self, why: EndedBy) -> None:
        """End the handler's scope from outside. The first reason counts, unless the task was taken away."""
        if self.ended_by is None or why is EndedBy.FENCED:
            already, self.ended_by = self.ended_by, why
            if self.inside and already is None and self.task is not None:
                self.task.cancel()

    def _ended(self) -> Failure:
        """Say what became of a handler that was cancelled. Raises `Fenced`."""
        if self.task is not None:
            self.task.uncancel()
        if self.ended_by is EndedBy.FENCED:
            raise self._fence or Fenced([])
        if self.ended_by is None:  # The handler cancelled itself: its own mistake.
            return Failure.of(Reason.HANDLER_ERROR)
        return Failure.of(_ENDS[self.ended_by], executed=Executed.MAYBE if self._began else Executed.NO)

    def _failure(self, error: Exception) -> Failure:
        """Say what the submitter may know of an exception; the rest goes to the agent's own log, without values."""
        if isinstance(error, NotExecuted):
            _log.warning("task %s did nothing: %s", self.task_id, where(error))
            return Failure.of(Reason.HANDLER_ERROR, executed=Executed.NO)
        known = failure_of(error)
        if known is None:
            _log.error("task %s (%s) failed: %s", self.task_id, self.offered.name, where(error))
            return Failure.of(Reason.HANDLER_ERROR, executed=None if self._began else Executed.NO)
        if not self._began:
            known.executed = Executed.NO
        return known

    # -- telling ------------------------------------------------------------------------------------

    async def _tell(self, value: Any, failure: Failure | None) -> None:
        if self._notes is not None and self._notes.held:
            await self._notes.flush()
        if failure is None:
            try:
                await self.conclude(TaskState.COMPLETED, data=value)
            except NotOnTheWire as error:
                message = f"the result cannot cross the wire: {error}"
                await self.conclude(TaskState.FAILED, error=Failure.of(Reason.BAD_RESULT, message))
        elif self.ended_by is EndedBy.CANCEL:
            await self.conclude(TaskState.CANCELLED, error=failure)
        elif self.ended_by is EndedBy.STOP:
            await self._interrupted(failure)
        else:
            await self._failed(failure)

    async def _failed(self, failure: Failure) -> None:
        now_ms = self.worker.stream.now_ms()
        decision = after_failure(
            failure,
            self.offered.rules,
            attempt=self.attempt,
            jitter=random(),
            now_ms=now_ms,
            expires_at=self.envelope.expires_at,
        )
        if isinstance(decision, End):
            await self.conclude(decision.state, error=decision.failure)
            return
        due = now_ms + int(decision.delay_s * 1000)
        await self.writer.write(TaskState.RETRYING, error=failure, due=due)
        self.work.put_back(decision.delay_s)

    async def _interrupted(self, failure: Failure) -> None:
        """Put it back for another worker, unless it may have been done and must not be done again (TASK-3)."""
        if failure.executed is Executed.NO or self.offered.rules.idempotent:
            await self.writer.write(TaskState.INTERRUPTED)
            self.work.put_back()
        else:
            unknown = Failure.of(Reason.OUTCOME_UNKNOWN, cause=Reason.INSTANCE_GONE)
            await self.conclude(TaskState.FAILED, error=unknown)

    async def conclude(
        self,
        state: TaskState,
        *,
        data: Any = None,
        error: Failure | None = None,
        first: TaskEvent | None = None,
    ) -> None:
        """Write the task's end, take it out of the queue, and tell whoever waits for it. Raises `Fenced`."""
        self.end = await self.writer.write(state, data=data, error=error, first=first)
        self.work.done()
        notify = subjects.answerable(self.submitted.notify or "")
        if notify:
            try:
                # A hint to whoever waits; who misses it reads the events.
                self.worker.connection.publish(notify, self.writer.packed)
            except (LinkDown, ReachError):
                _log.debug("the submitter of task %s was not told at once", self.task_id)

    async def say(self, state: TaskState, data: Any) -> TaskEvent:
        """Write an event of the running handler; it is ended where the task was taken away. Raises `Fenced`."""
        try:
            return await self.writer.write(state, data=data)
        except Fenced as fence:
            self._fence = self._fence or fence
            self.stop(EndedBy.FENCED)
            raise

    def _place_freed(self) -> None:
        self.place_is_held = False
        if self._done:
            self.worker.place_freed(self)

    def must_be_inside(self) -> None:
        """Raise `RuntimeError` when the handler is done."""
        if not self.inside:
            raise RuntimeError(f"task {self.task_id} is done: nothing can be said of it any more")
