"""The other three shapes of a call: a stream, a broadcast, and fire and forget.

They go through the same steps as a request (`reach.call.outbound`) and end in the same single record.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from reach.call.call import Call, Outlived
from reach.call.choose import Route
from reach.call.inflow import Inflow, StreamClocks
from reach.call.rounds import join_round, leave_round
from reach.errors import LinkDown, ReachError
from reach.faults import Reason
from reach.policy.retry import Retry, Why
from reach.wire import subjects
from reach.wire.reply import Failure, Reply

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reach.bus.pending import Pending
    from reach.call.options import Options
    from reach.call.outbound import Outbound

_log = logging.getLogger("reach.call")

UNHEARD_WITHIN_S: Final = 1.0
"""How long a published event's place stays open for the broker to say that nobody heard it."""

SETTLE_S: Final = 0.25
"""How long a broadcast waits for further answers once every instance known to be there has answered."""


class _Open:
    """The attempt of a stream that is open right now."""

    __slots__ = ("inflow", "pending")

    def __init__(self) -> None:
        self.pending: Pending | None = None
        self.inflow: Inflow | None = None


NO_KEY: Final = (
    "a broadcast takes no idempotency_key, since every instance is asked and does it for itself: leave the key out, "
    "or call `request`, which one of them does once"
)


class Outflow:
    """Streams, broadcasts and events of one client."""

    def __init__(self, outbound: Outbound) -> None:
        self._out = outbound
        self._loop = asyncio.get_running_loop()
        self._events: set[Pending] = set()

    # -- stream --------------------------------------------------------------------------------------

    async def stream(
        self, capability: str, given: object, options: Options, *, clocks: StreamClocks
    ) -> AsyncGenerator[Any, None]:
        """Yield the data of a stream. Raises the matching `ReachError` when it fails, at most once, at its end."""
        out = self._out
        call = out.prepare(capability, given, options, kind="stream", default_s=clocks.max_duration_s)
        call.envelope.type = "stream"
        now_open = _Open()
        told = False
        try:
            join_round(call, lambda: self._give_up(call, now_open))
            await out.admit(call)
            while True:
                pending, inflow = await self._open_stream(call, clocks, now_open)
                try:
                    more, item = await self._next(call, inflow)
                    while more:
                        call.data_frames += 1
                        yield item
                        more, item = await self._next(call, inflow)
                finally:
                    self._close_stream(call, pending, inflow)
                outcome: Reply | Failure = item
                out.note(call, pending, outcome)
                if isinstance(outcome, Reply) and outcome.ok:
                    break
                decision, outcome = out.judge.judge(call, outcome)
                if not isinstance(decision, Retry):
                    break
                await asyncio.sleep(decision.delay_s)
            told = True
            reply = out.teller.tell(call, outcome)
        except Outlived as ended:
            told = True
            reply = out.teller.tell(call, ended.failure)
        finally:
            leave_round(call)
            out.finish(call)
            if not told:
                # The reader left (break, aclose) or was cancelled.
                out.teller.tell_cancelled(call)
        if not reply.ok:
            reply.unwrap()

    async def _open_stream(self, call: Call, clocks: StreamClocks, now_open: _Open) -> tuple[Pending, Inflow]:
        out = self._out
        pending = await out.publish(call, await out.chosen(call), whole=True)

        def grant(size: int) -> None:
            if pending.accepted is not None:
                out.mux.credit(pending.accepted, pending.message_id, size)

        inflow = Inflow(clocks=clocks, deadline=call.deadline, grant=grant)
        pending.on_frame = inflow.put
        if pending.future.done():
            inflow.settle(pending.future.result())
        else:
            pending.future.add_done_callback(lambda future: inflow.settle(future.result()))
        now_open.pending, now_open.inflow = pending, inflow
        if call.given_up:
            self._give_up(call, now_open)
        return pending, inflow

    async def _next(self, call: Call, inflow: Inflow) -> tuple[bool, Any]:
        """Give the next datum, or the end; a whole reply in a stream's place is fetched where it is a blob."""
        more, item = await inflow.next_data()
        if not more or not isinstance(item, Reply):
            return more, item
        fetched = await self._out.claims.fetched(call, item)
        return (True, fetched.data) if isinstance(fetched, Reply) else (False, fetched)

    def _close_stream(self, call: Call, pending: Pending, inflow: Inflow) -> None:
        attempt = call.attempts[-1]
        attempt.instance = pending.accepted or attempt.instance
        attempt.took_ms = (monotonic() - call.began) * 1000 - attempt.started_ms
        if inflow.finished_by_far_end:
            self._out.mux.close_one(pending)
        else:
            self._out.mux.cancel(pending)
        inflow.leave()

    def _give_up(self, call: Call, now_open: _Open) -> None:
        """Its round has ended: the producer is told now, the reader when it looks again."""
        call.given_up = True
        if now_open.inflow is not None and now_open.pending is not None:
            now_open.inflow.settle(Failure.of(Reason.CANCELLED))
            if not now_open.inflow.finished_by_far_end:
                self._out.mux.cancel(now_open.pending)

    # -- broadcast -----------------------------------------------------------------------------------

    async def broadcast(
        self, capability: str, given: object, options: Options
    ) -> AsyncGenerator[Reply, None]:
        """Yield one reply an instance as they come, failures among them, until all have answered or time is up."""
        out = self._out
        call = out.prepare(capability, given, options, kind="broadcast")
        if call.keyed:
            raise ValueError(NO_KEY)
        answers: asyncio.Queue[Reply | Failure] = asyncio.Queue()
        failure: Failure | None = None
        pending: Pending | None = None
        done = False

        def give_up() -> None:
            call.given_up = True
            answers.put_nowait(Failure.of(Reason.CANCELLED))

        try:
            join_round(call, give_up)
            await out.admit(call)
            expected = {card.instance for card in await out.directory.instances(capability)}
            pending = await self._publish_broadcast(call, answers)
            async for reply in self._collect(call, answers, expected):
                reply.reach_id = call.reach_id
                yield reply
            if call.given_up:
                failure = Failure.of(Reason.CANCELLED)
            elif not call.data_frames:
                failure = Failure.of(Reason.NO_RESPONDERS)
            done = True
        except Outlived as ended:
            failure = ended.failure
            done = True
        finally:
            leave_round(call)
            if pending is not None:
                out.mux.close_one(pending)
            out.finish(call)
            if done:
                latency_ms = (monotonic() - call.began) * 1000
                if pending is not None:
                    whole = Reply(ok=True) if failure is None else failure
                    out.note(call, pending, whole)
                    call.attempts[-1].decision = "done" if failure is None else f"give_up:{Why.ATTEMPTS}"
                word = "ok" if failure is None else "cancelled" if call.given_up else "failed"
                out.teller.remember(call, word, failure, latency_ms)
            else:
                out.teller.tell_cancelled(call)
        if failure is not None:
            yield Reply(ok=False, error=failure, message_id=call.envelope.message_id, reach_id=call.reach_id)

    async def _publish_broadcast(self, call: Call, answers: asyncio.Queue[Reply | Failure]) -> Pending:
        out = self._out
        pending = await out.publish(call, Route(subjects.everyone(call.capability)), whole=True, frames=False)
        pending.on_reply = answers.put_nowait
        pending.future.add_done_callback(lambda future: answers.put_nowait(future.result()))
        return pending

    async def _collect(
        self, call: Call, answers: asyncio.Queue[Reply | Failure], expected: set[str]
    ) -> AsyncGenerator[Reply, None]:
        waiting = set(expected)
        answered: set[str] = set()
        while True:
            left_s = call.deadline - monotonic()
            if not waiting and call.data_frames:
                left_s = min(left_s, SETTLE_S)
            if left_s <= 0:
                return
            try:
                async with asyncio.timeout(left_s):
                    answer = await answers.get()
            except TimeoutError:
                return
            if isinstance(answer, Failure):
                return
            if answer.instance in answered:
                continue  # While a link is renewed an answer may come over both.
            call.data_frames += 1
            if answer.instance is not None:
                answered.add(answer.instance)
                waiting.discard(answer.instance)
            yield answer if answer.blob is None else await self._whole(call, answer)

    async def _whole(self, call: Call, answer: Reply) -> Reply:
        """Give an answer whose data stood in the blob store; a failed one when it is not to be had."""
        fetched = await self._out.claims.fetched(call, answer)
        if isinstance(fetched, Reply):
            return fetched
        answer.ok, answer.data, answer.blob, answer.error = False, None, None, fetched
        return answer

    # -- publish -------------------------------------------------------------------------------------

    async def publish(self, capability: str, given: object, options: Options) -> None:
        """Send an event to one instance; nobody answers. Raises `ReachError` when it could not even be sent.

        An event that nobody was there to hear is counted and logged as soon as the broker says so.
        """
        out = self._out
        call = out.prepare(capability, given, options, kind="publish")
        call.envelope.type = "event"
        try:
            await out.admit(call)
            pending = await out.publish(call, await out.chosen(call), whole=True, frames=False)
        except Outlived as ended:
            out.finish(call)
            out.teller.tell(call, ended.failure).unwrap()
            return
        except asyncio.CancelledError:
            out.finish(call)
            out.teller.tell_cancelled(call)
            raise
        self._events.add(pending)
        self._loop.call_later(UNHEARD_WITHIN_S, pending.settle, Reply(ok=True))
        pending.future.add_done_callback(lambda future: self._published(call, pending, future.result()))

    def _published(self, call: Call, pending: Pending, outcome: Reply | Failure) -> None:
        out = self._out
        self._events.discard(pending)
        out.mux.close_one(pending)
        out.finish(call)
        if isinstance(outcome, Failure):
            out.mux.unheard += outcome.reason is Reason.NO_RESPONDERS
            _log.warning("event %s was not heard: %s [%s]", call.capability, outcome.reason, call.reach_id)
        out.note(call, pending, outcome)
        call.attempts[-1].decision = "unheard" if isinstance(outcome, Failure) else "done"
        out.teller.tell(call, outcome)

    async def close(self) -> None:
        """Let what was published just now be heard: the broker says that nobody listens before it says PONG."""
        if not self._events:
            return
        try:
            await self._out.connection.flush()
        except (LinkDown, ReachError):
            return  # Then it is not known whether they were heard, and closing says so.
        for pending in list(self._events):
            pending.settle(Reply(ok=True))
        await asyncio.sleep(0)  # A turn of the loop, in which they are written down.
