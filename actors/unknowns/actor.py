"""The shell on the bus: follows the list of unknown outcomes, adds tasks to it, alerts operators, answers them.

What is known is in `book`, what a resolution does in `keys`, questions are answered by `desk`; `sweep` finds what no
caller enters. Several platforms may run it: whatever is written is guarded, so each task is entered once, each
resolution is the first one, and each alert is told by one of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from actors.unknowns.book import Book, as_it_may_be
from actors.unknowns.desk import STREAM, Desk, Trouble
from actors.unknowns.keys import Keys
from actors.unknowns.sweep import SWEEP_S, Sweep
from reach.bus.feed import Begin, Feed
from reach.bus.jetstream import GuardRefused, JetStream, Unacknowledged
from reach.bus.streams import UNKNOWN_KEPT_S
from reach.bus.taskstream import EVENTS, entry_of
from reach.errors import LinkDown, NameRefused, ReachError, SchemaInvalid
from reach.faults import Executed, Reason
from reach.runtime.hosted import Hosted
from reach.runtime.message import Message, failure_of, read, unread
from reach.wire import codec, subjects
from reach.wire.registration import read_message
from reach.wire.unknown import Resolution, Told, UnknownOutcome

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from reach.bus.connection import Connection
    from reach.bus.feed import Arrived
    from reach.bus.framing import Delivery
    from reach.wire.task import TaskEvent

_log = logging.getLogger("reach.unknowns")

TICK_S: Final = 0.5
LATE_S: Final = 10.0
"""A resolution without its effect for so long is another platform's no more: whoever sees it does it."""

FORGET_S: Final = 600.0
QUEUE: Final = "reach-unknowns"
"""Operators' questions go to one of several platforms."""

MOST_QUESTIONS: Final = 200
_AGAIN_S: Final = (0.1, 0.5, 1.0)
_ENDS: Final = ["task.event.failed.>", "task.event.dead.>"]


class Unknowns(Hosted):
    """The child that the platform hosts. `sweep_s` is how often the idempotency store is looked through."""

    def __init__(self, *, sweep_s: float = SWEEP_S) -> None:
        super().__init__(lambda connection: _Service(connection, sweep_s=sweep_s))


class _Service:
    def __init__(self, connection: Connection, *, sweep_s: float) -> None:
        self._connection = connection
        self._jetstream = JetStream(connection)
        self._book = Book()
        self._keys = Keys(connection)
        self._desk = Desk(connection, self._jetstream, self._book, self._keys, now_ms=self._now_ms)
        self._sweep = Sweep(connection, self._book, each_s=sweep_s)
        self._feed = Feed(connection, self._jetstream, STREAM, ["reach.unknown.>"], Begin(sequence=1))
        self._tasks = Feed(connection, self._jetstream, EVENTS, _ENDS, Begin(sequence=1))
        self._caught_up = asyncio.Event()
        self._subscription: Any = None
        self._busy = 0

    async def start(self, tasks: TaskGroup) -> None:
        """Begin. Raises `ReachError` when the streams are not there."""
        await self._feed.open()
        await self._tasks.open()
        for work in (self._follow, self._follow_tasks, self._look, self._sweep.follow, self._sweep_it):
            tasks.start_soon(work)
        self._subscription = self._connection.subscribe("reach.unknowns.*", self._taker(tasks), queue=QUEUE)
        await self._connection.flush()

    async def close(self) -> None:
        """Let go of everything."""
        if self._subscription is not None:
            self._subscription.drop()
        self._feed.close()
        self._tasks.close()
        await self._sweep.close()
        await self._keys.close()
        self._jetstream.close()

    def _now_ms(self) -> int:
        return self._connection.broker_time.now_ms()

    # -- the list ------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Take in the whole list, and whatever comes to it."""
        if self._feed.caught_up:
            self._caught_up.set()
        async for arrived in self._feed:
            try:
                self._take(arrived)
            except (SchemaInvalid, NameRefused) as error:
                # Any caller may publish there: one message that is none must not keep the others from being read.
                _log.warning("a message on %s cannot be read: %s", arrived.subject, error)
            except Exception:  # noqa: BLE001 - it is read again at each start: nobody would hear of any other
                _log.exception("a message on %s was not taken in", arrived.subject)
            if self._feed.caught_up:
                self._caught_up.set()

    def _take(self, arrived: Arrived) -> None:
        tenant, *kind = arrived.subject.split(".")[2:]
        body, sequence = codec.unpack(arrived.data), arrived.position.stream_seq
        match kind:
            case [] | ["task", *_]:
                outcome = as_it_may_be(read_message(body, UnknownOutcome), tenant)
                self._book.enter(outcome, sequence, arrived.position.stored_ms)
            case ["resolved", _]:
                self._book.resolve(read_message(body, Resolution), sequence)
            case ["told", *_]:
                self._book.tell(read_message(body, Told), sequence)
            case _:
                raise SchemaInvalid("it means nothing")

    # -- tasks ---------------------------------------------------------------------------------------

    async def _follow_tasks(self) -> None:
        """Enter every task of which nobody knows whether it was done."""
        await self._caught_up.wait()
        async for arrived in self._tasks:
            try:
                await self._take_task(arrived)
            except SchemaInvalid:
                continue  # Whoever may publish there may publish anything; nobody takes it for a task.
            except Exception:  # noqa: BLE001 - as above
                _log.exception("a task's event on %s was not taken in", arrived.subject)

    async def _take_task(self, arrived: Arrived) -> None:
        found = arrived.position
        event = entry_of(arrived.subject, arrived.data, found.stream_seq, found.stored_ms, fired=False).event
        error = event.error
        if error is None or error.reason is not Reason.OUTCOME_UNKNOWN:
            return
        outcome = of_task(event, event.at or found.stored_ms)
        if error.executed is Executed.MAYBE and outcome.reach_id not in self._book.rows:
            await self._enter(event, outcome)

    async def _enter(self, event: TaskEvent, outcome: UnknownOutcome) -> None:
        """Write a task's entry, for as long as it takes; the guard lets one of several platforms do it."""
        subject = subjects.unknown_task(event.tenant, event.task_id, event.run)
        data, tries = codec.pack(outcome.model_dump(exclude_none=True)), 0
        while True:
            try:
                await self._jetstream.publish(subject, data, guard=(subject, 0))
            except GuardRefused:
                return
            except (Unacknowledged, *Trouble) as error:
                _log.info("task %s is entered later: %s", event.task_id, error)
            else:
                return
            await asyncio.sleep(_AGAIN_S[min(tries, len(_AGAIN_S) - 1)])
            tries += 1

    async def _sweep_it(self) -> None:
        await self._caught_up.wait()
        await self._sweep.work()

    # -- time ----------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Alert, and see to what another platform has left undone."""
        await self._caught_up.wait()
        _log.info("%d unknown outcomes, %d of them open", len(self._book.rows), self._book.open)
        forgot = monotonic()
        while True:
            if self._connection.connected:
                try:
                    await self._alert()
                    await self._apply_late()
                except (Unacknowledged, *Trouble) as error:
                    _log.info("the list is looked after later: %s", error)
            if monotonic() - forgot >= FORGET_S:
                forgot = monotonic()
                self._book.forget(self._now_ms() - int(UNKNOWN_KEPT_S * 1000))
            await asyncio.sleep(TICK_S)

    async def _alert(self) -> None:
        for told, follows in self._book.due(self._now_ms()):
            alert = self._book.alert(told)
            subject = subjects.unknown_told(told.tenant, told.capability)
            try:
                sequence = await self._jetstream.publish(
                    subject, codec.pack(told.model_dump()), guard=(subject, follows)
                )
            except GuardRefused:
                continue  # Another platform tells.
            self._book.tell(told, sequence)
            self._connection.publish(subjects.alert(alert.kind), codec.pack(alert.model_dump()))
            _log.warning("%s", alert.message)

    async def _apply_late(self) -> None:
        for row in self._book.unapplied():
            said = row.resolution
            if said is not None and self._now_ms() - said.at >= LATE_S * 1000:
                _log.info("what follows from the resolution of %s is done now", said.reach_id)
                await self._desk.apply(row)

    # -- questions -----------------------------------------------------------------------------------

    def _taker(self, tasks: TaskGroup) -> Callable[[Delivery], None]:
        async def work(delivery: Delivery) -> None:
            try:
                await self._asked(delivery)
            except LinkDown:
                _log.info("%s was not answered: no link to NATS", delivery.subject)
            finally:
                self._busy -= 1

        def take(delivery: Delivery) -> None:
            if self._busy < MOST_QUESTIONS:
                self._busy += 1
                tasks.start_soon(work, delivery)

        return take

    async def _asked(self, delivery: Delivery) -> None:
        await self._caught_up.wait()
        try:
            message = read(delivery, self._connection)
        except SchemaInvalid as error:
            unread(delivery, self._connection).refuse(failure_of(error))
            return
        if message.is_request:
            await self._answer(message)

    async def _answer(self, message: Message) -> None:
        try:
            told = await self._desk.answer(message.subject.rpartition(".")[2], message.body)
            message.reply(told.model_dump(exclude_none=True))
        except LinkDown:
            raise
        except Exception as error:  # noqa: BLE001 - one question that fails ends nothing
            level = logging.INFO if isinstance(error, ReachError) else logging.WARNING
            _log.log(level, "%s was refused: %s", message.subject, type(error).__name__)
            message.refuse(failure_of(error))


def of_task(event: TaskEvent, at: int) -> UnknownOutcome:
    """Give the entry of a task that ended so. `at` is epoch milliseconds."""
    error = event.error
    return UnknownOutcome(
        reach_id=f"tsk_{event.task_id}_{event.run}",
        kind="task",
        tenant=event.tenant,
        capability=event.capability,
        cause="" if error is None else error.cause or "",
        at=at,
        provider=event.agent_id,
        instance=event.instance,
        source=event.source,
        agent_id=event.agent_id,
        task_id=event.task_id,
    )
