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
from reach.errors import LinkDown, ReachError
from reach.faults import Reason
from reach.policy.retry import Retry
from reach.wire import subjects
from reach.wire.reply import Failure, Reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reach.bus.mux import Pending
    from reach.call.options import Options
    from reach.call.outbound import Outbound

_log = logging.getLogger("reach.call")

UNHEARD_WITHIN_S: Final = 1.0
"""How long a published event's place stays open for the broker to say that nobody heard it."""

SETTLE_S: Final = 0.25
"""How long a broadcast waits for further answers once every instance known to be there has answered."""


class Outflow:
    """Streams, broadcasts and events of one client."""

    def __init__(self, outbound: Outbound) -> None:
        self._out = outbound
        self._loop = asyncio.get_running_loop()
        self._events: set[Pending] = set()

    # -- stream --------------------------------------------------------------------------------------

    async def stream(
        self, capability: str, given: object, options: Options, *, clocks: StreamClocks
    ) -> AsyncIterator[Any]:
        """Yield the data of a stream. Raises the matching `ReachError` when it fails, at most once, at its end."""
        out = self._out
        call = out.prepare(capability, given, options, kind="stream")
        if options.timeout_s is None:
            around = call.around.deadline
            whole = call.began + clocks.max_duration_s
            call.deadline = whole if around is None else min(whole, around)
        call.envelope.type = "stream"
        told = False
        try:
            await out.admit(call)
            while True:
                pending, inflow = await self._open_stream(call, clocks)
                try:
                    more, item = await inflow.next_data()
                    while more:
                        call.data_frames += 1
                        yield item
                        more, item = await inflow.next_data()
                finally:
                    self._close_stream(call, pending, inflow)
                outcome: Reply | Failure = item
                self._note(call, pending, outcome)
                if isinstance(outcome, Reply) and outcome.ok:
                    break
                decision, outcome = out.judge(call, outcome)
                if not isinstance(decision, Retry):
                    break
                await asyncio.sleep(decision.delay_s)
            told = True
            reply = out.tell(call, outcome)
        except Outlived as ended:
            told = True
            reply = out.tell(call, ended.failure)
        finally:
            out.release(call)
            if not told:
                # The reader left (break, aclose) or was cancelled.
                out.tell_cancelled(call)
        if not reply.ok:
            reply.unwrap()

    async def _open_stream(self, call: Call, clocks: StreamClocks) -> tuple[Pending, Inflow]:
        out = self._out
        pending = await out.publish(call, out.choose(call), whole=True)

        def grant(size: int) -> None:
            if pending.accepted is not None:
                out.mux.credit(pending.accepted, pending.message_id, size)

        inflow = Inflow(clocks=clocks, deadline=call.deadline, grant=grant)
        pending.on_frame = inflow.put
        if pending.future.done():
            inflow.settle(pending.future.result())
        else:
            pending.future.add_done_callback(lambda future: inflow.settle(future.result()))
        return pending, inflow

    def _close_stream(self, call: Call, pending: Pending, inflow: Inflow) -> None:
        if inflow.finished_by_far_end:
            self._out.mux.close_one(pending)
        else:
            self._out.mux.cancel(pending)
        call.attempts[-1].took_ms = (monotonic() - call.began) * 1000 - call.attempts[-1].started_ms

    def _note(self, call: Call, pending: Pending, outcome: Reply | Failure) -> None:
        self._out.note(call, call.attempts[-1], pending, outcome)

    # -- broadcast -----------------------------------------------------------------------------------

    async def broadcast(self, capability: str, given: object, options: Options) -> AsyncIterator[Reply]:
        """Yield one reply an instance as they come, failures among them, until all have answered or time is up."""
        out = self._out
        call = out.prepare(capability, given, options, kind="broadcast")
        answers: asyncio.Queue[Reply | Failure] = asyncio.Queue()
        failure: Failure | None = None
        pending: Pending | None = None
        done = False
        try:
            await out.admit(call)
            expected = {card.instance for card in await out.directory.instances(capability)}
            pending = await self._publish_broadcast(call, answers)
            async for reply in self._collect(call, answers, expected):
                reply.reach_id = call.reach_id
                yield reply
            failure = None if call.data_frames else Failure.of(Reason.NO_RESPONDERS)
            done = True
        except Outlived as ended:
            failure = ended.failure
            done = True
        finally:
            if pending is not None:
                out.mux.close_one(pending)
            out.release(call)
            if done:
                latency_ms = (monotonic() - call.began) * 1000
                out.remember(call, "failed" if failure is not None else "ok", failure, latency_ms)
            else:
                out.tell_cancelled(call)
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
    ) -> AsyncIterator[Reply]:
        waiting = set(expected)
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
            call.data_frames += 1
            if answer.instance is not None:
                waiting.discard(answer.instance)
            yield answer

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
            pending = await out.publish(call, out.choose(call), whole=True, frames=False)
        except Outlived as ended:
            out.release(call)
            out.tell(call, ended.failure).unwrap()
            return
        except asyncio.CancelledError:
            out.release(call)
            out.tell_cancelled(call)
            raise
        self._events.add(pending)
        self._loop.call_later(UNHEARD_WITHIN_S, pending.settle, Reply(ok=True))
        pending.future.add_done_callback(lambda future: self._published(call, pending, future.result()))

    def _published(self, call: Call, pending: Pending, outcome: Reply | Failure) -> None:
        out = self._out
        self._events.discard(pending)
        out.mux.close_one(pending)
        out.release(call)
        if isinstance(outcome, Failure):
            out.mux.unheard += outcome.reason is Reason.NO_RESPONDERS
            _log.warning("event %s was not heard: %s [%s]", call.capability, outcome.reason, call.reach_id)
        out.note(call, call.attempts[-1], pending, outcome)
        out.tell(call, outcome)

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
