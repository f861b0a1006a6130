"""What a request is answered: composed from its outcome, addressed to whoever asked, and sent in kind.

Every exception of a handler becomes a failure here: its caller learns what it may know, the agent's own log the rest,
without values. How bytes get onto the wire is `reach.runtime.answer`'s.
"""

from __future__ import annotations

import asyncio
import logging
import time
from time import monotonic
from typing import Any, Final

from reach import ids
from reach.errors import NotExecuted, NotOnTheWire, ReachError
from reach.faults import Executed, Reason
from reach.runtime.answer import Answers, TooLargeForOne, failure_of
from reach.runtime.job import EndedBy, Job
from reach.runtime.refusals import where
from reach.wire.reply import Failure, Reply
from reach.wire.trace import MAX_HOPS, Hop, Trace

_log = logging.getLogger("reach.agent")

ENDS: Final = {
    EndedBy.DEADLINE: Reason.DEADLINE,
    EndedBy.CANCEL: Reason.CANCELLED,
    EndedBy.STOP: Reason.INSTANCE_GONE,
}
"""What a caller is told whose request was stopped from outside."""


class Responder:
    """Answers the requests of one instance."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def refuse(self, job: Job, failure: Failure) -> None:
        """Answer a job that is not worked on."""
        self._answers.refuse(
            job.reply_to,
            message_id=job.envelope.message_id,
            as_json=job.as_json,
            failure=failure,
            attempt=job.envelope.attempt,
        )

    async def answer(self, job: Job, value: Any, failure: Failure | None) -> None:
        """Answer in the usual way, in one message or as the end of a stream. Raises `ReachError`, `NotOnTheWire`."""
        reply = self.composed(job, value, failure)
        if not job.in_frames:
            await self.send(job, reply)
        elif failure is None:
            self._answers.end(job, reply)
        else:
            self._answers.error(job, failure)

    def composed(self, job: Job, value: Any, failure: Failure | None) -> Reply:
        """Give the reply to a job, with everything but the data's form settled."""
        # A result that was refused stays here: it may be anything.
        data = value if failure is None else None
        reply = self._answers.reply(ok=failure is None, data=data, error=failure)
        reply.retried = job.marks.retried
        reply.cost = job.marks.cost
        self.addressed(job, reply)
        trace = job.envelope.trace
        if trace is not None and (failure is not None or trace.hops):
            reply.trace = self._traced(job, reply, trace)
        return reply

    def addressed(self, job: Job, reply: Reply) -> None:
        """Say which request a reply answers."""
        reply.message_id = job.envelope.message_id
        reply.attempt = job.envelope.attempt
        reply.latency_ms = (monotonic() - job.received) * 1000
        if not job.envelope.frames:
            reply.reach_id = reach_id(job)  # Our own callers know it; others read it here.

    async def send(self, job: Job, reply: Reply) -> None:
        """Send the one reply of a job, through the blob store where it must."""
        try:
            self._answers.send(job, reply)
        except TooLargeForOne:
            await self._send_large(job, reply)
        except NotOnTheWire as error:
            reply.ok, reply.data, reply.error = False, None, failure_of(error)
            self._answers.send(job, reply)

    async def _send_large(self, job: Job, reply: Reply) -> None:
        try:
            await self._answers.send_large(job, reply)
        except ReachError as error:
            # It ran: whatever kept its result from being stored (no room, no time), nobody is told to try again.
            message = error.message
            if error.reason is not Reason.BAD_RESULT:
                message = f"the agent finished, but its result could not be passed on: {message}"
            failure = Failure.of(Reason.BAD_RESULT, message)
            reply.ok, reply.data, reply.blob, reply.error = False, None, None, failure
            self._answers.send(job, reply)

    def _traced(self, job: Job, reply: Reply, trace: Trace) -> Trace:
        """Give the trace with this node's hop and those of its nested calls: who sends hops asks for them."""
        now_ms = int(time.time() * 1000)
        status = "ok" if reply.error is None else reply.error.code.value
        hop = Hop(
            self._answers.instance, int(now_ms - reply.latency_ms), round(reply.latency_ms, 3), None, status
        )
        hops = [*trace.hops, hop, *(job.marks.hops or ())][:MAX_HOPS]
        return Trace(trace.trace_id, trace.span_id, hops, trace.started_at)

    def ended(self, job: Job) -> Failure:
        """Say what became of a job that was stopped from outside."""
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        executed = Executed.MAYBE if job.started else Executed.NO
        if job.ended_by is not None:
            return Failure.of(ENDS[job.ended_by], executed=executed)
        # The handler cancelled itself: its own mistake, and nobody else's.
        return Failure.of(Reason.HANDLER_ERROR)

    def failure(self, job: Job, error: BaseException) -> Failure:
        """Say what a caller may know of an exception; the rest goes to the agent's own log, without values."""
        if isinstance(error, NotExecuted):
            _log.warning("%s did nothing: %s [%s]", job.served.name, where(error), reach_id(job))
            return Failure.of(Reason.HANDLER_ERROR, executed=Executed.NO)
        known = failure_of(error)
        if known is not None:
            if not job.started:
                known.executed = Executed.NO
            return known
        _log.error("%s failed: %s [%s]", job.served.name, where(error), reach_id(job))
        return Failure.of(Reason.HANDLER_ERROR)


def reach_id(job: Job) -> str:
    """Give the id under which people find a request."""
    return ids.reach_id_of(job.envelope.message_id)
