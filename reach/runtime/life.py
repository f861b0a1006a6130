"""One life of an actor: from its subscriptions through its mailbox to its handlers, one at a time.

The bus hands messages over inside its read loop; there they are only put into the mailbox, or refused. One loop
takes them out and calls the handler. The life ends when it is stopped (subscriptions withdrawn without losing a
message, the mailbox worked off) or when a handler raises. Whichever way, what is left is refused, the children
are stopped, and `on_stop` has the last word.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from reach.bus.framing import Delivery
from reach.bus.subscription import Subscription
from reach.chance import random
from reach.errors import CallTimeout, LinkDown, SchemaInvalid
from reach.faults import Reason
from reach.runtime.child import Escalated, Place, describe
from reach.runtime.handlers import Every, On
from reach.runtime.mailbox import Mailbox, MailboxClosed, Put
from reach.runtime.message import Message, ends_request_only, failure_of, read, unread
from reach.runtime.supervise import Supervision, Supervisor
from reach.wire.reply import Failure

_log = logging.getLogger("reach.runtime")

RETRY_AFTER_MS: Final = 100
"""What a refused sender is advised to wait. A full mailbox has room again after one message; this spares it."""

LAST_WORDS_S: Final = 1.0
"""How long letting go, and then `on_stop`, may take when the actor is being cancelled."""

LINK_POLL_S: Final = 0.2

DROPS_LOGGED_EACH_S: Final = 10.0

Call = Callable[..., Awaitable[None] | None]
Hook = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Delivered:
    call: Call
    delivery: Delivery


@dataclass(frozen=True, slots=True)
class _Told:
    call: Call
    message: Message


@dataclass(slots=True)
class _Timer:
    call: Call
    every: Every
    waiting: bool = False  # A tick is in the mailbox or at work.


class ActorLife:
    """Runs an actor's handlers. `calls` maps each handler to the actor's bound method."""

    def __init__(self, place: Place, *, calls: dict[On | Every, Call], capacity: int) -> None:
        self.place = place
        self.mailbox: Mailbox[_Delivered | _Told | _Timer] = Mailbox(capacity)
        self.children: Supervisor | None = None
        self._calls = calls
        self._told = {on.subject: call for on, call in calls.items() if isinstance(on, On) and on.local}
        self._tasks: TaskGroup | None = None
        self._work = anyio.CancelScope()
        self._stop_asked = asyncio.Event()
        self._children_ended = asyncio.Event()
        self._subscriptions: list[Subscription] = []
        self._failure: Exception | None = None
        self._drops_logged_at: float | None = None

    # -- from the actor -------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask for an end in good order."""
        self._stop_asked.set()

    async def run(self, on_start: Hook, on_stop: Hook) -> None:
        """Live. Raises what a hook or a handler raised, or `Escalated` when a child failed past its limit."""
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._follow_stop)
            try:
                with self._work:
                    if await self._link_or_stop():
                        await on_start()
                        await self._begin()
                        await self._work_off()
            except Exception as error:  # noqa: BLE001 - raised again below, after everything was put in order
                self._failure = self._failure or error
            except anyio.get_cancelled_exc_class():
                with _shield():
                    await self._let_go()
                with _shield():
                    await self._end_with(on_stop)
                raise
            await self._let_go()
            await self._end_with(on_stop)
            self._tasks.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    def tell(self, name: str, body: dict[str, Any], *, delay_s: float) -> bool:
        """Put a local message in, now or later. Raises `ValueError` where no handler has that name."""
        if name not in self._told:
            known = ", ".join(self._told) or "none"
            raise ValueError(
                f"{self.place.name} has no local handler of {name!r}; its local handlers: {known}"
            )
        told = _Told(self._told[name], Message(name, body))
        if delay_s > 0:
            self._group.start_soon(self._put_later, told, delay_s)
            return True
        return self._put(told)

    def family(self, supervision: Supervision) -> Supervisor:
        """Give the supervisor of this actor's children, made at first use."""
        if self.children is None:
            self.children = Supervisor(supervision=supervision, stays=True)
            self._group.start_soon(self._keep, self.children)
        return self.children

    # -- taking in ------------------------------------------------------------------------------------

    async def _link_or_stop(self) -> bool:
        """Wait for a link, so that a restart during an outage is not one more failure; False when stopped."""
        connection = self.place.connection
        while not connection.connected and not self._stop_asked.is_set():
            if not await connection.wait_connected(LINK_POLL_S):
                await asyncio.sleep(LINK_POLL_S)  # One that was closed for good says no at once.
        return not self._stop_asked.is_set()

    async def _begin(self) -> None:
        """Subscribe, start the timers, and say that we have started."""
        connection = self.place.connection
        for handler, call in self._calls.items():
            if isinstance(handler, Every):
                self._group.start_soon(self._tick, _Timer(call, handler))
            elif not handler.local:
                take = self._taker(call)
                self._subscriptions.append(connection.subscribe(handler.subject, take, queue=handler.queue))
        if self._subscriptions and connection.connected:
            # Without a link the subscriptions come with the next one.
            with suppress(LinkDown, CallTimeout):
                await connection.flush()
        self.place.started()

    def _taker(self, call: Call) -> Callable[[Delivery], None]:
        """Make what the read loop calls: instant, and it refuses what finds no room."""

        def take(delivery: Delivery) -> None:
            put = self.mailbox.put(_Delivered(call, delivery))
            if put is Put.TAKEN:
                return
            if put is Put.FULL:
                self._lost(delivery.subject)
            if delivery.reply:
                failure = self._overloaded() if put is Put.FULL else Failure.of(Reason.STALE)
                self._refuse(unread(delivery, self.place.connection), failure)

        return take

    def _put(self, told: _Told) -> bool:
        put = self.mailbox.put(told)
        if put is Put.FULL:
            self._lost(told.message.subject)
        return put is Put.TAKEN

    async def _put_later(self, told: _Told, delay_s: float) -> None:
        await self.place.clock.sleep(delay_s)
        self._put(told)

    async def _tick(self, timer: _Timer) -> None:
        every = timer.every
        due = every.immediately
        while not self.mailbox.closed:
            if due and not timer.waiting:
                timer.waiting = self.mailbox.put(timer, reserved=True) is Put.TAKEN
            spread = every.jitter * (2 * random() - 1)
            await self.place.clock.sleep(every.seconds * (1 + spread))
            due = True

    # -- working --------------------------------------------------------------------------------------

    async def _work_off(self) -> None:
        while True:
            try:
                item = await self.mailbox.get()
            except MailboxClosed:
                return
            try:
                await self._do(item)
            except LinkDown:
                # Not the actor's failure: else an outage of some seconds would use up all its restarts.
                _log.info("%s broke off: the link is down (%s)", self.place.name, _name_of(item))

    async def _do(self, item: _Delivered | _Told | _Timer) -> None:
        match item:
            case _Delivered(call, delivery):
                await self._handle(call, delivery)
            case _Told(call, message):
                await _finished(call(message))
            case _Timer():
                try:
                    await _finished(item.call())
                finally:
                    item.waiting = False

    async def _handle(self, call: Call, delivery: Delivery) -> None:
        """Call a handler with a message from the bus; whoever waits for an answer gets one if it fails."""
        try:
            message = read(delivery, self.place.connection)
        except SchemaInvalid as error:
            _log.warning("%s got an unreadable message on %s: %s", self.place.name, delivery.subject, error)
            if delivery.reply:
                self._refuse(unread(delivery, self.place.connection), Failure.of_error(error))
            return
        try:
            await _finished(call(message))
        except LinkDown:
            raise
        except Exception as error:
            if not message.waits:
                raise
            self._refuse(message, failure_of(error))
            if not ends_request_only(error):
                raise
        except anyio.get_cancelled_exc_class():
            if message.waits:
                self._refuse(message, Failure.of(Reason.INSTANCE_GONE))
            raise

    # -- ending ---------------------------------------------------------------------------------------

    async def _follow_stop(self) -> None:
        await self._stop_asked.wait()
        await self._withdraw()
        self.mailbox.close()

    async def _withdraw(self) -> None:
        """Leave all subjects at once; what the server had sent us by then is in the mailbox, or refused."""
        leaving, self._subscriptions = self._subscriptions, []
        async with anyio.create_task_group() as tasks:
            for subscription in leaving:
                tasks.start_soon(subscription.withdraw)

    async def _let_go(self) -> None:
        """Refuse what is left, leave the subjects, stop the children: whichever way the work ended."""
        self.mailbox.close()
        events = 0
        for item in self.mailbox.clear():
            if isinstance(item, _Delivered) and item.delivery.reply:
                self._refuse(unread(item.delivery, self.place.connection), Failure.of(Reason.STALE))
            elif not isinstance(item, _Timer):
                events += 1
        if events:
            _log.warning("%s ended with %d events not handled", self.place.name, events)
        await self._withdraw()
        if self.children is not None:
            self.children.stop()
            await self._children_ended.wait()

    async def _end_with(self, on_stop: Hook) -> None:
        try:
            await on_stop()
        except Exception as error:
            if self._failure is None:
                raise
            _log.warning("%s failed again in on_stop: %s", self.place.name, describe(error))

    async def _keep(self, children: Supervisor) -> None:
        """Run the children's supervisor; when it gives up, so does this life."""
        try:
            await children.run(replace(self.place, started=lambda: None))
        except Escalated as error:
            self._failure = self._failure or error
            self._work.cancel()
        finally:
            self._children_ended.set()

    # -- telling --------------------------------------------------------------------------------------

    def _lost(self, subject: str) -> None:
        """Log drops: the first at once, then one line for many."""
        now = self.place.clock.monotonic()
        if self._drops_logged_at is None or now - self._drops_logged_at >= DROPS_LOGGED_EACH_S:
            self._drops_logged_at = now
            _log.warning(
                "%s cannot keep up: its mailbox of %d is full, the newest message is dropped (%s; %d so far)",
                self.place.name,
                self.mailbox.capacity,
                subject,
                self.mailbox.dropped,
            )

    def _overloaded(self) -> Failure:
        limit = {
            "name": "mailbox",
            "owner": self.place.name,
            "used": len(self.mailbox),
            "allowed": self.mailbox.capacity,
            "resets_in_ms": RETRY_AFTER_MS,
        }
        return Failure.of(Reason.OVERLOADED, retry_after_ms=RETRY_AFTER_MS, limit=limit)

    def _refuse(self, message: Message, failure: Failure) -> None:
        try:
            message.refuse(failure)
        except LinkDown:
            _log.info("%s could not refuse %s: the link is down", self.place.name, message.subject)

    @property
    def _group(self) -> TaskGroup:
        if self._tasks is None:
            raise RuntimeError("the actor does not run yet")
        return self._tasks


def _shield() -> anyio.CancelScope:
    return anyio.CancelScope(shield=True, deadline=anyio.current_time() + LAST_WORDS_S)


def _name_of(item: _Delivered | _Told | _Timer) -> str:
    match item:
        case _Delivered(_, delivery):
            return delivery.subject
        case _Told(_, message):
            return message.subject
        case _Timer():
            return item.every.name


async def _finished(result: Awaitable[None] | None) -> None:
    """Wait for a handler that is async."""
    if inspect.isawaitable(result):
        await result
