"""One read under way for several (GUARD-5): the call that is made, and those who wait for it.

The call carries what belongs to the question only (`reach.call.question`), and has a trace of its own.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final, NamedTuple

from reach import ids
from reach.call.call import Call
from reach.call.context import CallContext, Marks
from reach.call.options import Options
from reach.call.question import Manner, Question, fresh
from reach.faults import Executed, Reason
from reach.wire.envelope import Envelope
from reach.wire.reply import Failure, Reply
from reach.wire.trace import Trace

LATE_S: Final = 0.01
"""How much later than its deadline one who waits gives up: as exact as the clock of all calls (a slot of the wheel).
The call that it waits for ends by the same deadline, and knows more."""

_OPTIONS: Final = {
    (retry, hedge): Options(retry=retry, hedge=hedge) for retry in (True, False) for hedge in (True, False)
}

ALIKE_S: Final = 0.02
"""Deadlines that are no further apart are the same: an attempt needs that much."""


class Landed(NamedTuple):
    """What a flight ended with: a reply, and the call that it came from."""

    reply: Reply
    reach_id: str
    batched: bool = False


class Waiter:
    """A call that waits for a flight; `lengthened` says that it has more time than those before it."""

    __slots__ = ("_flight", "call", "future", "lengthened", "timer")

    def __init__(self, call: Call, flight: Flight, loop: asyncio.AbstractEventLoop) -> None:
        self.call = call
        self._flight = flight
        self.lengthened = flight.lengthen(call.deadline)
        self.future: asyncio.Future[Landed | Failure] = loop.create_future()
        self.timer = loop.call_at(call.deadline + LATE_S, self._out_of_time)

    def settle(self, outcome: Landed | Failure) -> None:
        """Tell it; the first word counts."""
        self.timer.cancel()
        if not self.future.done():
            self.future.set_result(outcome)

    def fail(self, error: Exception) -> None:
        """Raise a mistake of the program where the call was made."""
        self.timer.cancel()
        if not self.future.done():
            self.future.set_exception(error)

    def _out_of_time(self) -> None:
        sent = bool(self._flight.made.attempts)
        self.settle(Failure.of(Reason.DEADLINE, executed=Executed.MAYBE if sent else Executed.NO))


class Flight:
    """One read under way, for all who wait for it.

    `call` is the read as it would be made alone; `made` is what is really made for it: the same, or that of a batch.
    """

    __slots__ = ("begun_by", "call", "key", "made", "question", "rank", "task", "waiters")

    def __init__(self, key: tuple[Question, Manner], call: Call, rank: int) -> None:
        self.key = key
        self.question = key[0]
        self.begun_by = call
        self.call = self.made = shared_call(call)
        self.rank = rank
        self.waiters: dict[Waiter, None] = {}
        self.task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> list[Waiter]:
        """Who has not been told yet, in the order in which they came."""
        return [waiter for waiter in self.waiters if not waiter.future.done()]

    def lengthen(self, deadline: float) -> bool:
        """Give it the time of one more; whether that is more than it had."""
        more = deadline - self.call.deadline > ALIKE_S
        for call in (self.call, self.made):
            call.deadline = max(call.deadline, deadline)
        return more


def shared_call(call: Call, *, capability: str | None = None) -> Call:
    """Give a call that is made for `call` and all who ask the same: it carries what belongs to the question only."""
    asked = call.envelope
    trace_id, span_id = ids.trace_and_span()
    envelope = Envelope(
        payload=fresh(asked.payload),
        capability=capability or call.capability,
        source=asked.source,
        tenant=asked.tenant,
        target=asked.target,
        require=fresh(asked.require),
        prefer=fresh(asked.prefer),
        priority=asked.priority,
        chain=asked.chain,
        trace=Trace(trace_id, span_id, [], call.began_ms),
    )
    return Call(
        capability or call.capability,
        "request",
        envelope,
        _OPTIONS[call.options.retry, call.options.hedge],
        CallContext(marks=Marks(), again=call.around.again),
        "rch_" + envelope.message_id,
        monotonic(),
        call.began_ms,
        call.deadline,
        call.card,
        shared=True,
    )
