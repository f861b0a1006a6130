"""Identical reads under way share one call (GUARD-5).

The first of them begins a *flight*: a call of its own, in a task of its own, with a trace of its own, under nobody's
task, session or budget. All who ask the same meanwhile wait for it, each with its own deadline, id, latency, record
and cancellation; the record of each names the call that was made. Retries happen in that call.

- It has the time of whoever waits longest. Who comes later with more time lengthens it; where an attempt that was
  sent before ends by its shorter time, and no other follows, whoever has time left begins a flight anew.
- Who leaves leaves alone. With the last one goes the call, at its agent too.
- Nobody waits behind a lower priority: a call shares with its own priority and with higher ones; a higher one begins
  a flight, which those who follow share.
- Calls inside a repeated request, and calls with other `retry`, `hedge` or `queue`, fly apart.

The tasks of flights are this client's, ended and awaited by `close`: no task group could hold them, since the call
that began one may leave it before the others do.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from time import monotonic
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from reach.call.batching import Batches
from reach.call.call import Call, Outlived, Saved
from reach.call.flight import Flight, Landed, Waiter
from reach.call.question import Manner, Question, fresh, manner_of, rank_of
from reach.faults import Executed, Reason
from reach.wire.reply import Failure, Reply

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from reach.call.keeping import Keeper
    from reach.call.outbound import Outbound
    from reach.call.thrift import Thrift

LEAST_S: Final = 0.02
"""Who has less time left than an attempt needs does not begin anew, nor counts as one who has more."""

_OUT_OF_TIME: Final = frozenset({Reason.DEADLINE, Reason.FIRST_BYTE, Reason.STALE, Reason.DISCONNECTED})


class Sharing:
    """The flights of one client."""

    def __init__(self, out: Outbound, thrift: Thrift, keeper: Keeper) -> None:
        self._out = out
        self._thrift = thrift
        self._keeper = keeper
        self._loop = asyncio.get_running_loop()
        self._flights: dict[tuple[Question, Manner], Flight] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.batches = Batches(out, thrift, self.spawn)

    def __len__(self) -> int:
        return len(self._flights)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run something that belongs to several calls, and so inherits from none of them."""
        task = self._loop.create_task(work, name=name, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """End every flight; whoever still waits is told."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- one who waits -------------------------------------------------------------------------------

    async def answer(self, call: Call, question: Question) -> Reply:
        """Give the answer to a call, from a flight. Raises `Outlived` when its own time is up."""
        key, rank = (question, manner_of(call)), rank_of(call)
        call.admitted = monotonic()
        while True:
            flight = self._flights.get(key)
            if flight is None or flight.rank > rank:
                flight, waiter = self._begin(key, call, rank)
            else:
                waiter = self._join(flight, call)
                self._out.metrics.coalesced.add(call.capability)
            try:
                outcome = await waiter.future
            finally:
                made = flight.made
                call.saved = Saved(
                    made.reach_id,
                    made.provider,
                    None,
                    batched=made is not flight.call,
                    sent=bool(made.attempts),
                )
                self._leave(flight, waiter)
            if isinstance(outcome, Failure):
                raise Outlived(outcome)
            error = outcome.reply.error
            if (
                error is not None
                and error.reason in _OUT_OF_TIME
                and waiter.lengthened
                and call.deadline - monotonic() > LEAST_S
            ):
                continue
            return _handed(outcome, call, flight)

    def _join(self, flight: Flight, call: Call) -> Waiter:
        waiter = Waiter(call, flight, self._loop)
        flight.waiters[waiter] = None
        flight.call.waiters += 1
        marks, own = flight.call.around.marks, call.around.marks
        if marks is not None and own is not None:
            marks.also = [*(marks.also or ()), own]
            if marks.retried:
                self._out.judge.announce(own)
        return waiter

    def _leave(self, flight: Flight, waiter: Waiter) -> None:
        waiter.timer.cancel()
        flight.waiters.pop(waiter, None)
        if not flight.waiters and flight.task is not None and not flight.task.done():
            self._forget(flight)
            flight.task.cancel()

    # -- the call that is made -----------------------------------------------------------------------

    def _begin(self, key: tuple[Question, Manner], call: Call, rank: int) -> tuple[Flight, Waiter]:
        flight = self._flights[key] = Flight(key, call, rank)
        waiter = self._join(flight, call)  # First: a task may run at once.
        flight.task = self.spawn(self._fly(flight), f"reach shared {call.capability}")
        return flight, waiter

    def _forget(self, flight: Flight) -> None:
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]

    async def _fly(self, flight: Flight) -> None:
        """Make the call, keep its answer, and tell all who wait."""
        landed: Landed | None = None
        try:
            landed = await self.batches.take(flight) or await self._alone(flight)
        except Exception as error:  # noqa: BLE001 - it is raised where the calls were made
            for waiter in flight.waiters:
                waiter.fail(error)
        finally:
            self._forget(flight)
            if landed is None:
                closing = Failure.of(Reason.DISCONNECTED, executed=flight.made.executed)
                landed = Landed(Reply(ok=False, error=closing), flight.made.reach_id)
            elif flight.call.card is not None:
                self._keeper.keep(flight.question, flight.call.card, landed)
            for waiter in flight.waiters:
                waiter.settle(landed)

    async def _alone(self, flight: Flight) -> Landed | None:
        """Make the call itself; None where all who waited were refused."""
        call = flight.made = flight.call
        if not await self._thrift.pay_for(call, lambda: flight.waiting):
            return None
        try:
            reply = await self._out.request(call.capability, None, call.options, made=call)
        finally:
            self._thrift.leave(call)
        return Landed(reply, call.reach_id)


def _handed(landed: Landed, call: Call, flight: Flight) -> Reply:
    """Give what a flight brought to one who waited for it: a reply of its own."""
    reply = landed.reply
    # What is known not to have been done, in any attempt of the call that was made, was not done for this one either.
    sent = reply.error is None or reply.error.executed is not Executed.NO
    call.saved = Saved(landed.reach_id, reply.provider, reply.instance, batched=landed.batched, sent=sent)
    call.inner_retried = reply.retried
    call.level = reply.degrade_level
    return Reply(
        ok=reply.ok,
        data=reply.data if flight.call.waiters == 1 else fresh(reply.data),
        error=None if reply.error is None else replace(reply.error),
        message_id=call.envelope.message_id,
        provider=reply.provider,
        instance=reply.instance,
        attempt=reply.attempt,
        degraded=reply.degraded,
        degrade_level=reply.degrade_level,
        cached=reply.cached,
        stale=reply.stale,
        durable=reply.durable,
        retried=reply.retried,
        cost=reply.cost if call is flight.begun_by else None,
        notice=reply.notice,
        trace=reply.trace,
    )
