"""The pipeline of a request at the agent: one function whose body is the order.

`receive` runs inside the read loop and only decides whether there is work (parse, expiry, overload); `_work` is
the order of everything else: fetch, check, run under the caller's deadline, answer. Starting a task a request is
one of the two audited exceptions from task groups: `close` ends and awaits every one of them.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from reach.bus.wheel import DeadlineWheel
from reach.call import ambient
from reach.call.context import Marks, enter, leave
from reach.errors import SchemaInvalid, Unreachable
from reach.faults import Executed, Reason
from reach.policy.bulkhead import TAKEN, Full, Place
from reach.runtime.answer import Answers
from reach.runtime.context import Context
from reach.runtime.crew import Crew
from reach.runtime.job import EndedBy, Job, Served
from reach.runtime.keyed import Keyed
from reach.runtime.refusals import overloaded, too_large, where
from reach.runtime.responder import ENDS, Responder, reach_id
from reach.runtime.streaming import StreamRunner
from reach.wire import codec, subjects
from reach.wire.envelope import Envelope
from reach.wire.reply import Failure

if TYPE_CHECKING:
    from reach.bus.blobs import Blobs
    from reach.bus.brokertime import BrokerTime
    from reach.bus.framing import Delivery
    from reach.call.client import Bus
    from reach.policy.bulkhead import Waiter
    from reach.runtime.once import Once
    from reach.runtime.stall import StallGuard

_log = logging.getLogger("reach.agent")

_FIRST_OF_MSGPACK: Final = 0x80

END_S: Final = 5.0
"""How long a handler that was stopped may take to end."""

_SOON_S: Final = 0.1
"""A job that must be over so soon has its place on the wheel at once: nobody looks at it before."""

ACCEPT_AFTER_S: Final = 0.025
"""A handler that has not finished this long after receipt tells its caller who has the call (design, section 4)."""


class Inbound:
    """The serving side of one instance."""

    def __init__(
        self,
        *,
        answers: Answers,
        blobs: Blobs,
        bus: Bus,
        guard: StallGuard,
        once: Once,
        broker_time: BrokerTime,
        inbox: str,
    ) -> None:
        self._guard = guard
        self._broker_time = broker_time
        self._answers = answers
        self._blobs = blobs
        self._bus = bus
        self._agent_id = answers.provider
        self._instance = answers.instance
        self._loop = asyncio.get_running_loop()
        # Young jobs, oldest first. Most are answered before anybody looks: they never see the wheel.
        self._young: dict[Job, None] = {}
        self._elder: set[Job] = set()
        self._by_message: dict[str, Job] = {}
        self._wheel: DeadlineWheel[Job] = DeadlineWheel(self._loop, self._on_due)
        self._look: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event | None = None
        self._streams = StreamRunner(answers, inbox)
        self._responder = Responder(answers)
        self._by_key = Keyed(self, once, answers=answers, responder=self._responder, metrics=bus.metrics)
        self._crew, self._keyed = (
            Crew(work, enter=partial(ambient.enter, bus), reset=leave, drained=answers.write_out)
            for work in (self.work, self._by_key.work)
        )

    @property
    def inflight(self) -> int:
        """Requests in work, or waiting for a place."""
        return len(self._young) + len(self._elder)

    # -- in the read loop ----------------------------------------------------------------------------

    def receive(self, served: Served, delivery: Delivery) -> None:
        """Take a request off the socket: refuse it now, or start its work."""
        # No map of msgpack begins with an ASCII byte: whoever sent one, or nothing, reads text.
        as_json = not delivery.data or delivery.data[0] < _FIRST_OF_MSGPACK
        try:
            envelope = self._parse(served, delivery)
        except SchemaInvalid as error:
            self._answers.refuse(
                delivery.reply, message_id="", as_json=as_json, failure=Failure.of_error(error)
            )
            return
        received = delivery.received
        timeout_s = served.timeout_s if envelope.timeout_ms is None else envelope.timeout_ms / 1000
        job = Job(served, envelope, delivery.reply, as_json, received, received + timeout_s)
        if envelope.idempotency_key is None and envelope.task_id is None:
            refusal = self._refusal(job, len(delivery.data)) or self.take_place(job)
        else:
            refusal = self._refusal(job, len(delivery.data)) or self._by_key.admit(job, delivery.subject)
        if refusal is not None:
            served.refused += 1
            if job.wants_answer:
                self._responder.refuse(job, refusal)
            return
        self._young[job] = None
        if timeout_s < _SOON_S:
            job.slot = self._wheel.add(job, job.due)
        if served.is_stream:
            self._by_message[envelope.message_id] = job
        if self._look is None:
            self._look = self._loop.call_at(received + ACCEPT_AFTER_S, self._look_after)
        if job.holds_slot:
            self._crew.submit(job)
        elif job.waiter is None:
            self._keyed.submit(job)

    def _parse(self, served: Served, delivery: Delivery) -> Envelope:
        envelope = Envelope.read(delivery.data) if delivery.data else Envelope()
        envelope.tenant = subjects.tenant_of(delivery.subject) or envelope.tenant
        envelope.capability = served.name
        return envelope

    def _refusal(self, job: Job, size: int) -> Failure | None:
        """Why a request of `size` bytes is not started, or None. Everything here is `executed=no`."""
        now = monotonic()
        served = job.served
        if size > served.card.max_payload_bytes and (refusal := too_large(job, size)) is not None:
            return refusal
        if job.deadline <= now:
            return Failure.of(Reason.DEADLINE, executed=Executed.NO)
        if self._guard.is_stale(job.received):
            return Failure.of(Reason.STALE)
        expires_at = job.envelope.expires_at
        if expires_at is not None and expires_at < self._broker_time.now_ms(now):
            self._broker_time.doubt()
            return Failure.of(Reason.STALE)
        return None

    # -- places --------------------------------------------------------------------------------------

    def take_place(self, job: Job) -> Failure | None:
        """Take a place for the job, or one in the queue; the refusal where there is neither (GUARD-1, GUARD-2)."""
        served, priority = job.served, job.envelope.priority
        places = served.places
        if places.queue_limit and places.used >= places.share(priority) and job.is_nested_in_itself:
            return overloaded(served, places.full(priority))
        outcome = places.take(priority)
        if outcome is TAKEN:
            job.holds_slot = True
            return None
        if isinstance(outcome, Full):
            return overloaded(served, outcome)
        job.waiter = outcome.waiter
        outcome.waiter.wakes = job
        if outcome.shed is not None:
            self._turn_away(outcome.shed.wakes, overloaded(served, places.full(outcome.shed.priority)))
        return None

    def _hand_on(self, waiter: Waiter | None) -> None:
        """Begin the work of whoever has a place now."""
        if waiter is not None:
            job: Job = waiter.wakes
            waiter.move(Place.LEFT)  # From here on the place is the job's, as anybody else's is.
            job.waiter = None
            job.holds_slot = True
            if job.slot:
                self._wheel.discard(job, job.slot)
                job.slot = self._wheel.add(job, job.due)
            (self._crew if job.run is None else self._keyed).submit(job)

    def _turn_away(self, job: Job, failure: Failure) -> None:
        """End a job that waited for a place, and did not get one."""
        job.waiter = None
        self._by_key.leave(job)
        job.served.refused += 1
        if job.wants_answer:
            self._responder.refuse(job, failure)
        self.forget(job)

    # -- control -------------------------------------------------------------------------------------

    def cancel(self, message_id: str, attempt: int | None = None) -> bool:
        """The caller left: end the handler's scope. Works on a saturated agent, since it takes no slot.

        Where `attempt` says which one is meant, another attempt of the same call goes on: acceptance of the first may
        come so late that the word about it arrives during the second.
        """
        job = self._by_message.get(message_id)
        if job is None or attempt not in {None, job.envelope.attempt}:
            job = None
            for one in (*self._young, *(self._elder if attempt is not None else ())):
                envelope = one.envelope
                if envelope.message_id == message_id and attempt in {None, envelope.attempt}:
                    job = one
            if job is None:
                return False
        self._stop(job, EndedBy.CANCEL)
        return True

    def credit(self, stream_id: str, size: int) -> None:
        """Let a stream send more."""
        job = self._by_message.get(stream_id)
        if job is not None and size > 0:
            job.give_credit(size)

    def reader_is_gone(self, delivery: Delivery) -> None:
        """The broker says that nobody listens for the frames of a stream: its reader was killed."""
        self._streams.reader_is_gone(delivery)

    def _on_due(self, job: Job) -> None:
        if job.due <= monotonic():  # Else it has had a place since this turn of the wheel began.
            self._stop(job, EndedBy.DEADLINE)

    def _stop(self, job: Job, why: EndedBy) -> None:
        if job.waiter is None:
            job.stop(why)
            return
        self._hand_on(job.served.places.leave(job.waiter))
        self._turn_away(job, Failure.of(ENDS[why], executed=Executed.NO))

    def _look_after(self) -> None:
        """Take the jobs that are no longer young: they get a place on the wheel, and their callers a word."""
        self._look = None
        now = monotonic()
        grown = []
        for job in self._young:
            if job.received + ACCEPT_AFTER_S > now:
                self._look = self._loop.call_at(job.received + ACCEPT_AFTER_S, self._look_after)
                break
            grown.append(job)
        for job in grown:
            del self._young[job]
            self._elder.add(job)
            self._by_message[job.envelope.message_id] = job
            if not job.slot:
                job.slot = self._wheel.add(job, job.due)
            if job.envelope.frames and job.wants_answer and not job.accepted:
                self._answers.accepted(job)

    def on_retry(self, marks: Marks) -> None:
        """Tell the caller of the handler that has these marks that a call inside is made again (RETRY-7)."""
        for job in (*self._young, *self._elder):
            if job.marks is marks and job.envelope.frames and job.wants_answer:
                self._answers.accepted(job)

    # -- the order of the work -----------------------------------------------------------------------

    async def work(self, job: Job, task: asyncio.Task[None]) -> None:
        """Do the work of a request that has its place, from its parameters to its answer."""
        handler = job.served.handler
        job.task = task
        value: Any = None
        failure: Failure | None = None
        interrupt: KeyboardInterrupt | None = None
        job.entered = True
        try:
            # 1 stopped before it began?
            if job.ended_by is not None:
                raise asyncio.CancelledError
            # 2 fetch what did not fit the message
            params = job.envelope.payload if job.envelope.blob is None else await self.fetched(job)
            # 3 check
            context = Context(job, self._bus, self._instance) if handler.wants_context else None
            args, kwargs = handler.arguments(params, context)
            # 4 inherit, for nested calls
            enter(job.context(self._agent_id))
            # 5 run under the caller's deadline, unless this process stood still since it was received
            if self._guard.is_stale(job.received):
                raise Unreachable(reason=Reason.STALE)
            job.started = job.handed_over = True
            if job.served.in_loop:
                try:
                    value = await handler.function(*args, **kwargs)
                finally:
                    self.free(job)
                value = handler.result(value)
            elif job.served.is_stream:
                value = await self._streams.run(job, args, kwargs, on_late=partial(self.free, job))
            else:
                value = await self._offloaded(job, args, kwargs)
                # 6 check the result
                value = handler.result(value)
        except asyncio.CancelledError:
            failure = self._responder.ended(job)
        except BaseException as error:  # Whatever a handler raises becomes a reply.
            if isinstance(error, GeneratorExit) and asyncio.current_task(self._loop) is not task:
                raise  # No handler raised it: the loop has ended, and this coroutine is thrown away.
            failure = self._responder.failure(job, error)
            interrupt = error if isinstance(error, KeyboardInterrupt) else None
        # 7 answer; a call that has a key, once what became of it is kept
        try:
            if job.run is not None:
                await self._by_key.answer(job, job.run, value, failure)
            elif job.wants_answer and not (failure is None and self._answer_small(job, value)):
                await self._responder.answer(job, value, failure)
        except asyncio.CancelledError:
            failure = self._responder.ended(job)
            self._responder.refuse(job, failure)
        except Exception as error:  # noqa: BLE001 - what cannot be told must not leave its caller waiting
            _log.error("an answer of %s was lost: %s [%s]", job.served.name, where(error), reach_id(job))
            failure = Failure.of(Reason.BAD_RESULT)
            self._responder.refuse(job, failure)
        finally:
            self._finish(job, failure)
        if interrupt is not None:
            raise interrupt  # It may be a person's Ctrl-C: the program still ends by it, its caller knows.

    async def fetched(self, job: Job) -> dict[str, Any]:
        """Fetch parameters that did not fit the message. Raises `ReachError`."""
        blob = job.envelope.blob or {}
        return codec.unpack(await self._blobs.get(blob, limit=job.served.card.max_payload_bytes))

    async def _offloaded(self, job: Job, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a handler in a thread or a process."""
        if job.run is not None:
            return await self._by_key.offloaded(job, job.run, args, kwargs)
        served = job.served
        return await served.executor.run(served.handler, args, kwargs, on_late=partial(self.free, job))

    def free(self, job: Job) -> None:
        """Give the slot back: when the work no longer occupies it, which for a thread is when it returns (CALL-4)."""
        if job.holds_slot:
            job.holds_slot = False
            waiter = job.served.places.give_back()
            if waiter is not None:
                self._hand_on(waiter)

    def _answer_small(self, job: Job, value: Any) -> bool:
        """Answer in the usual way: a good result, in one message that says nothing unusual. False where it is not."""
        envelope, marks = job.envelope, job.marks
        plain = envelope.frames and not (job.as_json or marks.retried or marks.hops or job.served.is_stream)
        if not plain or marks.cost is not None or (envelope.trace is not None and envelope.trace.hops):
            return False
        latency_ms = (monotonic() - job.received) * 1000
        return self._answers.good(job.reply_to, value, envelope.message_id, envelope.attempt, latency_ms)

    def _finish(self, job: Job, failure: Failure | None) -> None:
        """Give everything back; a slot that a thread still holds follows when it returns."""
        served = job.served
        served.done += 1
        took_ms = (monotonic() - job.received) * 1000
        served.busy_ms += took_ms
        if failure is None and served.tally is not None:
            served.tally.good(took_ms)
        else:
            served.failed += failure is not None
            self._bus.metrics.request_served(served.name, failure, took_ms)
        if not job.handed_over:
            self.free(job)
        elif job.holds_slot:
            _log.warning(
                "%s cannot be stopped and keeps its place until it ends [%s]", served.name, reach_id(job)
            )
        self.forget(job)

    def forget(self, job: Job) -> None:
        """Let go of a job that has ended."""
        job.finished = True
        job.task = None
        if job in self._young:
            del self._young[job]
        else:
            self._elder.discard(job)
        if job.slot:
            self._wheel.discard(job, job.slot)
        message_id = job.envelope.message_id
        if self._by_message and self._by_message.get(message_id) is job:
            del self._by_message[message_id]
        if self._idle is not None and not self.inflight:
            self._idle.set()

    # -- end -----------------------------------------------------------------------------------------

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is in work; whether that came about in time."""
        if not self.inflight:
            return True
        self._idle = asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        finally:
            self._idle = None
        return True

    async def close(self) -> None:
        """End what still runs (its callers are told), and await every task that was started here."""
        for job in [*self._elder, *self._young]:
            self._stop(job, EndedBy.STOP)
        await self.wait_idle(END_S)
        await self._crew.close(END_S)
        await self._keyed.close(END_S)
        if self._look is not None:
            self._look.cancel()
            self._look = None
        self._wheel.close()
