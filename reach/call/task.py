"""One task, in the hands of whoever submitted it, or of whoever knows its id."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reach.bus.feed import Begin
from reach.bus.taskstream import Outrun
from reach.bus.translate import translate
from reach.call.taskfeed import Filter, TaskFeed
from reach.errors import CallTimeout, LinkDown, ReachError, Unreachable, UpstreamRefusal
from reach.faults import Executed, Reason
from reach.policy.tasklife import AT_WORK, UNSTARTED, TaskLife, fold, may_follow
from reach.wire import codec, subjects
from reach.wire.reply import Failure, Reply
from reach.wire.task import TaskEvent, TaskOrder, TaskState

if TYPE_CHECKING:
    from reach.call.tasks import Tasks

T = TypeVar("T")

ORDER_S: Final = 10.0
"""How long a worker may take to obey, where the caller does not say."""

_LOOK_S: Final = (1.0, 2.0, 5.0, 10.0)
_AGAIN_S: Final = 0.02
_OBEY_S: Final = 1.0


class Task:
    """A task. `id`, `capability` (where known) and `tenant` name it; `is_duplicate`: its key was used before."""

    def __init__(self, tasks: Tasks, task_id: str, *, tenant: str, capability: str | None) -> None:
        self._tasks = tasks
        self.id = task_id
        self.tenant = tenant
        self.capability = capability
        self.sequence: int | None = None
        """Where its submission stands among the events, where this handle submitted it."""
        self.reach_id: str | None = None
        """By which the records of its attempts are found, where this handle submitted it."""
        self.is_duplicate = False
        self.is_told = False
        """Whether its end is told to this client."""
        self._end: TaskEvent | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        return f"<Task {self.id} of {self.capability or 'unknown'}>"

    def told(self, event: TaskEvent) -> None:
        """Take the hint that it has ended."""
        if event.task_id == self.id and event.state.is_terminal:
            self._has_ended(event)

    def events(self) -> TaskFeed:
        """Follow its events from the first to its end: `async for event in task.events()`."""
        wanted = Filter.of(tenant=self.tenant, task_id=self.id)
        return TaskFeed(self._tasks, wanted, Begin(sequence=1), until_end=True)

    async def last(self) -> TaskEvent:
        """Read its last event, which is its state.

        Raises `UpstreamRefusal`/`NOT_FOUND` for a task without events: they are kept for a week.
        """
        entry = await _linked(self._tasks.stream.last(self.tenant, self.id))
        if entry is None:
            raise self._not_there()
        event = entry.event
        if entry.fired or event.state is TaskState.QUEUED:
            # A schedule may have fired after its end; the end is what counts.
            entries = await _linked(self._tasks.stream.since(self.tenant, self.id, 0))
            ends = [
                one.event for one in entries if one.event.state.is_terminal and one.event.run >= event.run
            ]
            event = ends[-1] if ends else event
        event.sequence = entry.sequence
        return await self._tasks.whole(event)

    async def history(self) -> list[TaskEvent]:
        """Read what has happened to it so far, in order, without waiting for more. Raises as `last`."""
        entries = await _linked(self._tasks.stream.since(self.tenant, self.id, 0))
        if not entries:
            raise self._not_there()
        for entry in entries:
            entry.event.sequence = entry.sequence
        return [await self._tasks.whole(entry.event) for entry in entries]

    async def end(self, *, timeout_s: float | None = None) -> TaskEvent:
        """Wait for its end, and give that event. Raises `CallTimeout` when it has not ended in time; it goes on."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        looks = 0
        while self._end is None:
            if looks or not self.is_told:
                event = await self._peek()
                if event is not None and event.state.is_terminal:
                    self._end = event
                    break
            wait_s = _LOOK_S[min(looks, len(_LOOK_S) - 1)] if self.is_told else 0.05 * (looks + 1)
            looks += 1
            left_s = None if deadline is None else deadline - loop.time()
            if left_s is not None and left_s <= 0:
                raise CallTimeout(
                    f"task {self.id} has not ended within {timeout_s:g} s; it goes on, and can be waited for again"
                )
            await self._hinted(min(wait_s, 1.0 if not self.is_told else wait_s, left_s or wait_s))
        return await self._tasks.whole(self._end)

    async def result(self, *, timeout_s: float | None = None) -> Any:
        """Wait for its result.

        Raises the matching `ReachError` for a task that failed, died, was cancelled or ran out of time, and
        `CallTimeout` when it has not ended within `timeout_s`.
        """
        event = await self.end(timeout_s=timeout_s)
        if event.state is TaskState.COMPLETED:
            return event.data
        failure = event.error or Failure.of(_REASONS.get(event.state, Reason.UNMAPPED))
        raise failure.to_error()

    async def cancel(
        self, *, attempt: int | None = None, reason: str | None = None, timeout_s: float = ORDER_S
    ) -> TaskState:
        """End it, and give the state it is in then: `cancelled`, or the end that came first.

        `attempt` binds the wish to one try: at another it does nothing. Raises `CallTimeout` when its worker did not
        end it in time (`executed=maybe`), `UpstreamRefusal`/`NOT_FOUND` for a task that there is not.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            life = await self._life()
            state = life.state
            if state is None:
                raise self._not_there()
            if life.has_ended or (attempt is not None and attempt != life.attempt):
                return state
            left_s = deadline - loop.time()
            if left_s <= 0:
                raise CallTimeout(f"task {self.id} was not ended within {timeout_s:g} s; it is {state}")
            if state in UNSTARTED:
                if await self._cancelled(life, reason):
                    return TaskState.CANCELLED
                continue
            order = TaskOrder(attempt=life.attempt, reason=reason, source=self._tasks.connection.who)
            try:
                await self._order(subjects.task_cancel(self.tenant, self.id), order, min(left_s, _OBEY_S))
            except CallTimeout:
                continue  # It may have ended in that moment, or have lost its worker: look again.
            except ReachError as error:
                if error.reason is not Reason.NOT_FOUND:
                    raise
            await asyncio.sleep(_AGAIN_S)

    async def answer(self, value: Any, *, question: str | None = None, timeout_s: float = ORDER_S) -> None:
        """Answer what it asks (`input_required`); `question` is that event's `event_id`, where it must be that one.

        Raises `SchemaInvalid` for an answer that does not fit, `UpstreamRefusal`/`NOT_FOUND` when nothing (of the
        kind) is asked, `CallTimeout` when no worker took it: then nobody has it.
        """
        order = TaskOrder(data=codec.wire_form(value), event_id=question, source=self._tasks.connection.who)
        state = (await self.last()).state
        if state not in AT_WORK:
            raise UpstreamRefusal(
                f"task {self.id} asks nothing: it is {state}", reason=Reason.NOT_FOUND, executed=Executed.NO
            )
        await self._order(subjects.task_input(self.tenant, self.id), order, timeout_s)

    async def retry(self, *, timeout_s: float | None = None) -> None:
        """Submit it anew after it has failed, died or run out of time: the same parameters, under the same id.

        `timeout_s` is its new time; as much as it had before where left out. Attempts count from 1 again. Raises
        `UpstreamRefusal` for a task that has not ended so, or whose submission is no longer kept (seven days).
        """
        entries = await _linked(self._tasks.stream.since(self.tenant, self.id, 0))
        life = fold((entry.sequence, entry.event) for entry in entries)
        first = next((entry.event for entry in reversed(entries) if entry.event.envelope is not None), None)
        run = life.run + 1
        if life.state is None or first is None or first.envelope is None:
            raise self._not_there()
        if not may_follow(life.state, TaskState.QUEUED, again=True) or not life.has_ended:
            raise UpstreamRefusal(
                f"task {self.id} is {life.state}: only what failed, died or ran out of time is submitted anew",
                executed=Executed.NO,
            )
        now_ms = self._tasks.stream.now_ms()
        had_ms = (first.envelope.expires_at or 0) - max(first.due or 0, first.at)
        if timeout_s is not None:
            had_ms = int(timeout_s * 1000)
        first.envelope.expires_at = now_ms + had_ms if had_ms > 0 else None
        event = TaskEvent(
            task_id=self.id,
            state=TaskState.QUEUED,
            capability=first.capability,
            tenant=self.tenant,
            run=run,
            source=self._tasks.connection.who,
            envelope=first.envelope,
            callback=first.callback,
            callback_states=first.callback_states,
        )
        try:
            await self._tasks.stream.append(event, after=life.sequence)
        except Outrun:
            raise UpstreamRefusal(
                f"task {self.id} was submitted anew by somebody else just now", executed=Executed.NO
            ) from None
        self._end = None
        self.is_told = False

    # -- steps ---------------------------------------------------------------------------------------

    async def _peek(self) -> TaskEvent | None:
        """Read the last event; None while nobody can be asked: whoever waits goes on waiting."""
        try:
            return await self.last()
        except (Unreachable, CallTimeout):
            return None

    async def _life(self) -> TaskLife:
        entries = await _linked(self._tasks.stream.since(self.tenant, self.id, 0))
        return fold((entry.sequence, entry.event) for entry in entries)

    async def _cancelled(self, life: TaskLife, reason: str | None) -> bool:
        """Cancel what nobody has; False when somebody wrote first."""
        last = await _linked(self._tasks.stream.at(life.sequence))
        capability = self.capability or (last.event.capability if last is not None else None)
        if capability is None:
            return False
        event = TaskEvent(
            task_id=self.id,
            state=TaskState.CANCELLED,
            capability=capability,
            tenant=self.tenant,
            attempt=life.attempt,
            lost=life.lost,
            run=life.run,
            source=self._tasks.connection.who,
            data=None if reason is None else {"reason": reason},
            error=Failure.of(Reason.CANCELLED, executed=Executed.NO if life.attempt == 0 else Executed.MAYBE),
        )
        try:
            await self._tasks.stream.append(event, after=life.sequence)
        except Outrun:
            return False
        self._has_ended(event)
        return True

    async def _order(self, subject: str, order: TaskOrder, timeout_s: float) -> None:
        """Tell its worker something, and wait until that has answered. Raises what it answered."""
        body = await _linked(self._tasks.connection.request(subject, order.pack(), timeout_s=timeout_s))
        reply = Reply.read(body)
        if isinstance(reply, Reply):
            reply.unwrap()

    async def _hinted(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append(waiter)
        timer = loop.call_later(wait_s, _settle, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _has_ended(self, event: TaskEvent) -> None:
        self._end = event
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _settle(waiter)

    def _not_there(self) -> ReachError:
        return UpstreamRefusal(
            f"there is no task {self.id} (of tenant {self.tenant}): its events are kept for seven days",
            reason=Reason.NOT_FOUND,
            executed=Executed.NO,
        )


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _linked(asked: Coroutine[Any, Any, T]) -> T:
    """Wait for something that needs a link. Raises `Unreachable` where there is none."""
    try:
        return await asked
    except LinkDown as down:
        raise translate(down) from None


_REASONS: Final = {
    TaskState.CANCELLED: Reason.CANCELLED,
    TaskState.TIMED_OUT: Reason.DEADLINE,
    TaskState.DEAD: Reason.WORKER_LOST,
}
