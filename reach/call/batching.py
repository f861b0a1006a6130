"""Point reads that are merged into one call of a capability that takes many at once (GUARD-6).

Reads under way that differ only in the parameter `by` are collected for `window_ms`, at most `max` of them, and made
as one call of `into`; the results are handed out by order or by name. A batch is one tenant's and one principal's. It
has the time of its most patient read; a read that leaves is left out, and with the last one goes the call.

Where it cannot be, each read is made by itself: it is alone in its window, it has not the time to wait for one, what
it asks by is no text or number, or nobody serves `into`, which is then not asked for a while. Whatever else goes wrong
with a batch, all who are in it are told; a value that it says nothing of fails that read alone.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from reach.call.flight import Landed, shared_call
from reach.call.question import Manner, Question, fresh, question_of
from reach.faults import Executed, Reason
from reach.wire.reply import Failure, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from reach.call.call import Call
    from reach.call.flight import Flight, Waiter
    from reach.call.outbound import Outbound
    from reach.call.thrift import Thrift
    from reach.wire.card import Batch

    Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]

_log = logging.getLogger("reach.call")

ABSENT_S: Final = 5.0
"""How long `into` is not asked after nobody served it: as long as an instance that failed is avoided."""

PATIENT: Final = 4
"""A read waits for others only if it has this many windows left: the most of its time is for its answer."""

MAX_ABSENT: Final = 1_000

_POINTS: Final = (str, int, float)
_UNFIT: Final = frozenset({Reason.NO_RESPONDERS, Reason.NOT_FOUND, Reason.SCHEMA})
"""Nobody serves `into`, or it does not take what the rule sends it: no fault of those who read."""


class Gathering:
    """A batch that is being collected, and then is under way."""

    __slots__ = ("call", "full", "key", "rule", "seats", "task")

    def __init__(self, key: tuple[Question, Manner, int], rule: Batch) -> None:
        self.key = key
        self.rule = rule
        self.seats: dict[Flight, asyncio.Future[Landed | None]] = {}
        self.full = asyncio.Event()
        self.call: Call | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> list[Waiter]:
        """Who waits for its reads."""
        return [waiter for flight in self.seats for waiter in flight.waiting]

    def settle(self, flight: Flight, landed: Landed | None) -> None:
        """Tell one read how it ended; None lets it go alone."""
        seat = self.seats[flight]
        if not seat.done():
            seat.set_result(landed)


class Batches:
    """The batches of one client. `spawn` runs what belongs to several calls."""

    def __init__(self, out: Outbound, thrift: Thrift, spawn: Spawn) -> None:
        self._out = out
        self._thrift = thrift
        self._spawn = spawn
        self._open: dict[tuple[Question, Manner, int], Gathering] = {}
        self._absent: dict[str, float] = {}

    async def take(self, flight: Flight) -> Landed | None:
        """Make a read as part of a batch; None where it has to be made alone."""
        rule = flight.call.card.batch if flight.call.card is not None else None
        if rule is None or not self._may_wait(flight, rule):
            return None
        key = (question_of(flight.call, without=rule.by), flight.key[1], flight.rank)
        batch = self._open.get(key)
        if batch is None:
            batch = self._open[key] = Gathering(key, rule)
            batch.task = self._spawn(self._run(batch), f"reach batch {rule.into}")
        seat: asyncio.Future[Landed | None] = asyncio.get_running_loop().create_future()
        batch.seats[flight] = seat
        if len(batch.seats) >= rule.max:
            self._shut(batch)
        try:
            landed = await seat
        except asyncio.CancelledError:
            self._leave(batch, flight)
            raise
        if landed is not None:
            self._out.metrics.batched.add(flight.call.capability)
        return landed

    def _may_wait(self, flight: Flight, rule: Batch) -> bool:
        now = monotonic()
        return (
            type(flight.call.envelope.payload.get(rule.by)) in _POINTS
            and flight.call.deadline - now > PATIENT * rule.window_ms / 1000
            and self._absent.get(rule.into, 0.0) <= now
        )

    def _shut(self, batch: Gathering) -> None:
        """Let nobody in any more: it goes now."""
        if self._open.get(batch.key) is batch:
            del self._open[batch.key]
        batch.full.set()

    def _leave(self, batch: Gathering, flight: Flight) -> None:
        batch.seats.pop(flight, None)
        if not batch.seats and batch.task is not None:
            self._shut(batch)
            batch.task.cancel()

    # -- the call that is made -----------------------------------------------------------------------

    async def _run(self, batch: Gathering) -> None:
        """Wait for the window's end, make the call, and hand out what it brought."""
        try:
            try:
                async with asyncio.timeout(batch.rule.window_ms / 1000):
                    await batch.full.wait()
            except TimeoutError:
                self._shut(batch)
            if len(batch.seats) > 1:
                await self._make(batch)
        finally:
            self._shut(batch)
            for flight in batch.seats:
                batch.settle(flight, None)

    async def _make(self, batch: Gathering) -> None:
        rule = batch.rule
        directory = self._out.directory
        card = directory.known(rule.into) or await directory.card_for(rule.into)
        flights = list(batch.seats)
        if card is None or not flights:
            self._note_absent(rule.into)
            return
        call = batch.call = _call_of(flights, rule)
        call.card = card
        for flight in flights:
            flight.made = call
        if not await self._thrift.pay_for(call, lambda: batch.waiting):
            return
        try:
            reply = await self._out.request(rule.into, None, call.options, made=call)
        finally:
            self._thrift.leave(call)
        error = reply.error
        if error is not None and error.reason in _UNFIT and error.executed is Executed.NO:
            if error.reason is Reason.SCHEMA:
                _log.warning(
                    "reads of %s cannot go as %s: %s", batch.key[0].capability, rule.into, error.message
                )
            self._note_absent(rule.into)
            return
        _hand_out(batch, flights, reply, call.reach_id)

    def _note_absent(self, into: str) -> None:
        if len(self._absent) >= MAX_ABSENT:
            self._absent.clear()
        self._absent[into] = monotonic() + ABSENT_S


def _call_of(flights: list[Flight], rule: Batch) -> Call:
    """Give the call of a batch: what its reads have in common, and the list of what each asks for."""
    call = shared_call(flights[0].call, capability=rule.into)
    payload = call.envelope.payload
    del payload[rule.by]
    payload[rule.many] = [flight.call.envelope.payload[rule.by] for flight in flights]
    call.deadline = max(flight.call.deadline for flight in flights)
    call.waiters = sum(flight.call.waiters for flight in flights)
    return call


def _hand_out(batch: Gathering, flights: list[Flight], reply: Reply, reach_id: str) -> None:
    """Tell each read of a batch what it got; those that have left meanwhile are passed over.

    What the batch cost is told to the first of them, so that the costs of all replies are what was spent.
    """
    found = reply.data
    rule = batch.rule
    cost = reply.cost
    wrong = None
    if reply.ok and type(found) is list and len(found) != len(flights):
        wrong = (
            f"{rule.into} was asked for {len(flights)} values and gave {len(found)}: "
            "a list has one result for each value, in their order"
        )
    elif reply.ok and type(found) not in {list, dict}:
        wrong = (
            f"{rule.into} answers a batch with a list or a map of results, not with {type(found).__name__}"
        )
    for at, flight in enumerate(flights):
        if flight not in batch.seats:
            continue
        value = flight.call.envelope.payload[rule.by]
        data, missing = None, wrong
        if reply.ok and wrong is None:
            if type(found) is list:
                data = found[at]
            elif (name := _name_of(value)) in found:
                data = fresh(found[name])  # 1 and "1" have the same name.
            else:
                missing = f"{rule.into} said nothing of {rule.by} {value!r}, which was asked for"
        part, cost = replace(reply, data=data, cost=cost), None
        if missing is not None:
            part.ok, part.error = False, Failure.of(Reason.BAD_RESULT, missing)
        batch.settle(flight, Landed(part, reach_id, batched=True))


def _name_of(value: str | float) -> str:
    """Give a value as the key of a map, which is text."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else str(value)
