"""The tasks actor: the shell on the bus. It follows the events of all tasks, and does what no worker is there to do.

What is known is in `book`, what is decided in `judge`; `watch` looks after what is due, `orders` answers for tasks
that nobody has, `courier` delivers callbacks, `desk` answers operators. Several may run: whatever they write is
guarded by what they read, so one of them wins, and it does not matter which.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from actors.tasks.book import KEPT_MS, QUIET_MS, Book, Row
from actors.tasks.courier import Courier
from actors.tasks.desk import Desk
from actors.tasks.figures import Figures
from actors.tasks.ledger import Ledger
from actors.tasks.orders import Orders
from actors.tasks.signing import Signer
from actors.tasks.watch import GONE_S, Trouble, Watch
from reach.bus.blobs import Blobs
from reach.bus.connection import Connection, LinkState
from reach.bus.feed import Begin, Feed
from reach.bus.framing import Delivery
from reach.bus.guard import Guard
from reach.bus.taskstream import EVENTS, Entry, TaskStream, entry_of
from reach.errors import LinkDown, SchemaInvalid
from reach.registry.cards import CardDirectory
from reach.runtime.hosted import Hosted
from reach.runtime.message import Message, failure_of, read, unread
from reach.wire import codec, subjects
from reach.wire.alert import Alert

_log = logging.getLogger("reach.tasks")

ALL: Final = "task.event.>"
TICK_S: Final = 0.25
FORGET_S: Final = 600.0
EACH_S: Final = 300.0
"""The same matter is told again at most so often (behaviour SEE-9)."""

QUEUE: Final = "reach-tasks"
"""Operators' questions go to one of several platforms."""

MOST_ORDERS: Final = 1000
"""Orders that may be worked on at once; what comes beside them is not answered, and asked again."""


class Tasks(Hosted):
    """The child that the platform hosts. `gone_s` is another than `GONE_S` in tests only."""

    def __init__(self, *, gone_s: float = GONE_S) -> None:
        super().__init__(lambda connection: _Service(connection, gone_s=gone_s))


class _Service:
    def __init__(self, connection: Connection, *, gone_s: float) -> None:
        self._connection = connection
        self._stream = TaskStream(connection)
        self._cards = CardDirectory(connection)
        self._book = Book(quiet_ms=min(QUIET_MS, int(gone_s * 1000)))
        self._watch = Watch(connection, self._stream, self._book, self._cards, tell=self._tell, gone_s=gone_s)
        guard = Guard.of()
        self._ledger = Ledger(connection, self._stream.jetstream)
        self._courier = Courier(
            self._ledger,
            self._stream,
            Blobs(connection),
            Signer.of(connection.settings),
            guard,
            tell=self._tell,
        )
        self._figures = Figures()
        self._orders = Orders(connection, self._stream, self._book, self._watch)
        self._desk = Desk(self._book, self._courier, is_idempotent=self._watch.is_idempotent)
        self._feed = Feed(connection, self._stream.jetstream, EVENTS, [ALL], Begin(sequence=1))
        self._caught_up = asyncio.Event()
        self._busy = 0
        self._told: dict[tuple[str, str], float] = {}
        self._subscriptions: list[Any] = []
        self._owed: list[tuple[Row, Entry]] = []

    async def start(self, tasks: TaskGroup) -> None:
        """Begin. Raises `ReachError` when the streams are not there."""
        await self._ledger.open()
        await self._feed.open()
        tasks.start_soon(self._ledger.read)
        tasks.start_soon(self._follow)
        tasks.start_soon(self._look)
        tasks.start_soon(self._courier.run)
        subscribe = self._connection.subscribe
        self._subscriptions = [
            subscribe("task.cancel.*.*", self._taker(tasks, self._orders.cancel)),
            subscribe("task.input.*.*", self._taker(tasks, self._orders.input)),
            subscribe("reach.tasks.*", self._taker(tasks, self._asked), queue=QUEUE),
        ]
        self._connection.on_state(self._on_state)
        await self._connection.flush()

    async def close(self) -> None:
        """Let go of everything."""
        self._connection.off_state(self._on_state)
        for subscription in self._subscriptions:
            subscription.drop()
        self._watch.close()
        self._feed.close()
        self._stream.close()
        await self._cards.close()

    # -- events --------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Take in every event, from the first that is kept."""
        await self._ledger.ready.wait()
        if self._feed.caught_up:
            self._caught_up.set()
        async for arrived in self._feed:
            found = arrived.position
            try:
                entry = entry_of(
                    arrived.subject,
                    arrived.data,
                    found.stream_seq,
                    found.stored_ms,
                    fired="Nats-Scheduler" in arrived.headers,
                )
            except SchemaInvalid:
                continue  # Whoever may publish there may publish anything; workers do not take it either.
            try:
                await self._take(entry)
            except Exception:  # noqa: BLE001 - it is read again at each start: all other tasks would have nobody
                _log.exception("event %d of task %s was not taken in", entry.sequence, entry.event.task_id)
            if self._feed.caught_up:
                self._caught_up.set()

    async def _take(self, entry: Entry) -> None:
        row = self._book.take(entry)
        if row is None:
            return
        self._watch.note(row)
        if row.is_told_of(entry.event.state):
            await self._owe(row, entry)

    async def _owe(self, row: Row, entry: Entry) -> None:
        """Enter a callback; what cannot be entered now is entered later, and nothing waits for it."""
        try:
            await self._courier.owe(row, entry.event, entry.sequence)
        except Trouble:
            self._owed.append((row, entry))

    # -- time ----------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Look after what is due, again and again, once everything that has happened is known."""
        await self._caught_up.wait()
        _log.info("%d tasks known", len(self._book.rows))
        forgot = monotonic()
        while True:
            self._figures.show(self._book.counts)
            if self._connection.connected:
                await self._look_once()
            if monotonic() - forgot >= FORGET_S:
                forgot = monotonic()
                self._book.forget(self._stream.now_ms())
                self._ledger.forget(self._stream.now_ms() - KEPT_MS)
            await asyncio.sleep(TICK_S)

    async def _look_once(self) -> None:
        owed, self._owed = self._owed, []
        for row, entry in owed:
            await self._owe(row, entry)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch.learn)
            for row in self._book.due(self._stream.now_ms()):
                tasks.start_soon(self._look_after, row)

    async def _look_after(self, row: Row) -> None:
        try:
            await self._watch.look_after(row)
        except Trouble as error:
            _log.info("task %s is looked after later: %s", row.task_id, str(error) or "no link to NATS")
        except Exception:  # noqa: BLE001 - one task that nobody foresaw must not cost all others their watch
            _log.exception("task %s cannot be looked after", row.task_id)
        if not row.life.has_ended and not row.look_at:
            self._book.remind(row, self._stream.now_ms() + self._watch.look_ms)

    def _on_state(self, state: LinkState) -> None:
        if state is not LinkState.CLOSED:
            self._watch.link_changed()

    # -- orders and questions ------------------------------------------------------------------------

    def _taker(
        self, tasks: TaskGroup, handle: Callable[[Delivery], Awaitable[None]]
    ) -> Callable[[Delivery], None]:
        """Give what the read loop calls: it only has the work begun."""

        async def work(delivery: Delivery) -> None:
            try:
                await handle(delivery)
            except LinkDown:
                _log.info("%s was not answered: no link to NATS", delivery.subject)
            except Exception as error:  # noqa: BLE001 - one order that nobody foresaw must not be the end of all
                _log.exception("%s was not carried out", delivery.subject)
                self._refuse(delivery, error)
            finally:
                self._busy -= 1

        def take(delivery: Delivery) -> None:
            if self._busy < MOST_ORDERS:
                self._busy += 1
                tasks.start_soon(work, delivery)

        return take

    def _refuse(self, delivery: Delivery, error: Exception) -> None:
        message = unread(delivery, self._connection)
        try:
            if message.is_request:
                message.refuse(failure_of(error))
        except LinkDown:
            _log.info("%s was not answered: no link to NATS", delivery.subject)

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
            message.reply(await self._desk.answer(message.subject.rpartition(".")[2], message.body))
        except LinkDown:
            raise
        except Exception as error:  # noqa: BLE001 - one question that fails ends nothing
            _log.warning("%s was refused: %s", message.subject, type(error).__name__)
            message.refuse(failure_of(error))

    def _tell(self, kind: str, subject: str, text: str) -> None:
        """Tell operators, each matter once in a while."""
        now = monotonic()
        if now - self._told.get((kind, subject), -EACH_S) < EACH_S:
            return
        if len(self._told) > MOST_ORDERS:
            self._told.clear()
        self._told[kind, subject] = now
        at = self._stream.now_ms()
        alert = Alert(kind=kind, subject=subject, message=text, first_seen=at, at=at)
        try:
            self._connection.publish(subjects.alert(kind), codec.pack(alert.model_dump()))
        except LinkDown:
            _log.warning("%s", text)
