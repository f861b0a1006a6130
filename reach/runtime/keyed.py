"""The order of a call that has a key: known already, under way, or to be run, and then as any other.

What it meets is `reach.runtime.once`'s to decide. Here it gets its place, and gives it back where it turns out that it
needs none; and here is what its handler leaves: a result that is kept before anybody is told, and a thread that goes on
when nobody waits any more, whose result is kept when it returns.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from reach.bus.idempotency import Taken
from reach.errors import NotOnTheWire, UpstreamFailure
from reach.faults import Executed, Reason
from reach.runtime.answer import check_size, failure_of
from reach.runtime.executor import ThreadExecutor
from reach.runtime.refusals import where
from reach.runtime.responder import reach_id
from reach.wire import codec
from reach.wire.reply import Failure, Reply

if TYPE_CHECKING:
    from reach.observe.metrics import Metrics
    from reach.runtime.answer import Answers
    from reach.runtime.inbound import Inbound
    from reach.runtime.job import Job
    from reach.runtime.keeper import Run
    from reach.runtime.once import Once
    from reach.runtime.responder import Responder

_log = logging.getLogger("reach.agent")

_OF_ANOTHER: Final = frozenset({Reason.OUTCOME_UNKNOWN, Reason.IN_PROGRESS})
"""What is said of a call that was made before, under the same key."""


class Keyed:
    """The calls of one instance that have a key, on their way through its pipeline."""

    def __init__(
        self, inbound: Inbound, once: Once, *, answers: Answers, responder: Responder, metrics: Metrics
    ) -> None:
        self._inbound = inbound
        self._once = once
        self._answers = answers
        self._responder = responder
        self._metrics = metrics

    def admit(self, job: Job, subject: str) -> Failure | None:
        """Admit a call that may have a key: one that has takes its place later, when it is known that it needs one."""
        once = self._once
        return once.refusal(job) if once.concerns(job, subject) else self._inbound.take_place(job)

    def leave(self, job: Job) -> None:
        """Let a call go that never began: whoever waits for it looks for itself."""
        if job.run is not None:
            self._once.leave(job.run)

    async def work(self, job: Job, task: asyncio.Task[None]) -> None:
        """The order for a call with a key: known already, under way, or to be run, and then as any other."""
        job.task = task
        job.entered = True
        told: Reply | Failure | None
        try:
            told = await self._led(job)
        except asyncio.CancelledError:
            told = self._responder.ended(job)
            told.executed = Executed.MAYBE  # Not by this call, but one with its key may have been.
        except Exception as error:  # noqa: BLE001 - as in `Inbound.work`
            told = self._responder.failure(job, error)
        if told is not None:
            await self._tell(job, told)
        elif job.waiter is None:
            await self._inbound.work(job, task)
        else:
            job.task, job.entered = None, False  # It goes on when it has its place.

    async def _led(self, job: Job) -> Reply | Failure | None:
        """Bring a call to where its handler may start, with its entry written; else give what it is answered.

        None, too, for one that has to wait for a place.
        """
        once, run, envelope = self._once, job.run, job.envelope
        if job.ended_by is not None:
            raise asyncio.CancelledError
        if run is None:
            if envelope.blob is not None:
                envelope.payload, envelope.blob = await self._inbound.fetched(job), None
            told = await once.meet(job)
            if job.run is None:
                return told
            run = job.run
        places = job.served.places
        # Where there is no place for it, perhaps it needs none.
        looks = not job.holds_slot and places.used >= places.share(envelope.priority)
        while True:
            if looks and (told := await once.look(job, run)) is not None:
                return told
            if not job.holds_slot and (refusal := self._inbound.take_place(job)) is not None:
                once.leave(run)
                job.served.refused += 1
                return refusal
            if not job.holds_slot:
                return None
            try:
                return await once.begin(job, run)
            except Taken:
                self._inbound.free(job)
                looks = True

    async def _tell(self, job: Job, told: Reply | Failure) -> None:
        """Answer a call whose handler need not, or must not, run."""
        failure = told if isinstance(told, Failure) else told.error
        try:
            if job.wants_answer:
                if isinstance(told, Failure):
                    reply = self._responder.composed(job, None, told)
                    reply.duplicate = told.reason in _OF_ANOTHER
                else:
                    # It is we who answer, whoever did it.
                    reply = replace(told, provider=self._answers.provider, instance=self._answers.instance)
                    self._responder.addressed(job, reply)
                await self._responder.send(job, reply)
        except Exception as error:  # noqa: BLE001 - as in `Inbound.work`
            _log.error("an answer of %s was lost: %s [%s]", job.served.name, where(error), reach_id(job))
            self._responder.refuse(job, Failure.of(Reason.BAD_RESULT))
        finally:
            self._inbound.free(job)
            if job.run is not None and not job.run.begun:
                self._once.leave(job.run)
            self._metrics.request_served(job.served.name, failure, (monotonic() - job.received) * 1000)
            self._inbound.forget(job)

    async def answer(self, job: Job, run: Run, value: Any, failure: Failure | None) -> None:
        """Answer a call that has a key, once what became of it is kept."""
        reply = self._responder.composed(job, value, failure)
        if not run.outlived:
            crossing = self._crossing(job, reply)
            # A copy: what becomes of it on the way to this caller is nothing that duplicates are given.
            reply = replace(await self._once.end(run, crossing, idempotent=job.served.card.idempotent))
            self._responder.addressed(job, reply)
        if job.wants_answer:
            await self._responder.send(job, reply)

    async def _outlived(self, job: Job, run: Run, returning: asyncio.Future[Any]) -> None:
        """Keep what a thread returns whose caller has been answered."""
        value: Any = None
        failure: Failure | None = None
        try:
            value = job.served.handler.result(await returning)
        except Exception as error:  # noqa: BLE001 - as in `Inbound.work`
            failure = self._responder.failure(job, error)
        reply = self._crossing(job, self._responder.composed(job, value, failure))
        await self._once.end(run, reply, idempotent=job.served.card.idempotent)

    def _crossing(self, job: Job, reply: Reply) -> Reply:
        """Give a reply in the form that crosses the wire; what cannot, or is too large, was done, and is lost."""
        try:
            reply.data = codec.wire_form(reply.data)
            if len(reply.pack()) > job.served.card.max_payload_bytes:
                check_size(job, len(codec.pack({"data": reply.data})))
        except (NotOnTheWire, UpstreamFailure) as error:
            reply.ok, reply.data, reply.error = False, None, failure_of(error)
        return reply

    async def offloaded(self, job: Job, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a handler in a thread or a process."""
        served = job.served
        running = served.executor.run(served.handler, args, kwargs, on_late=partial(self._inbound.free, job))
        if not isinstance(served.executor, ThreadExecutor):
            return await running
        # It cannot be stopped, only left alone: what becomes of it is kept when it returns.
        returning = self._once.keeper.spawn(running, name=f"thread of {served.name}")
        try:
            return await asyncio.shield(returning)
        except asyncio.CancelledError:
            run.outlived = True
            self._once.keeper.spawn(self._outlived(job, run, returning), name=f"late end of {served.name}")
            raise
