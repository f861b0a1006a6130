"""Running a body of the program's own as a call: deadline, retry and record, with nothing on the wire.

The order is the pipeline's (`reach.call.outbound`): prepare, run, judge, tell. What the body raises passes
through unchanged, unless it says that the far end was not reached or that nobody knows what happened; then it
becomes the matching `ReachError`, with the original as its cause.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import anyio
from msgspec.structs import replace

from reach import ids
from reach.call import ambient
from reach.call.call import Call
from reach.call.client import default_recorder
from reach.call.context import CallContext, Marks, current, enter
from reach.call.native import failure_of, is_flagged
from reach.call.options import NO_OPTIONS, CallOptions
from reach.chance import random
from reach.errors import NotExecuted, ReachError
from reach.faults import Executed, Reason
from reach.observe.records import Recorder
from reach.policy.deadline import DEFAULT_TIMEOUT_S, attempt_share_s, narrow
from reach.policy.retry import Retry, Unknown, decide, timeout_may_retry
from reach.wire import names
from reach.wire.envelope import Envelope
from reach.wire.record import Attempt, ReachRecord
from reach.wire.reply import Failure, Reply
from reach.wire.trace import Trace

LOCAL: Final = "local"
"""Provider and subject of what was done here."""


@dataclass(slots=True)
class Outcome:
    """How one run ended: a value, or what the body raised and what it means.

    `foreign` says that the error is another library's word for what a `ReachError` says.
    """

    value: Any = None
    error: Exception | None = None
    failure: Failure | None = None
    foreign: bool = False

    def unwrap(self) -> Any:
        """Give the value, or raise what the caller is to see."""
        if self.failure is None:
            return self.value
        own = self.error
        if own is not None and self.failure.reason is not Reason.OUTCOME_UNKNOWN and not self.foreign:
            raise own
        raise self.failure.to_error() from own


class Guard:
    """The rules under which one function runs."""

    def __init__(
        self,
        capability: str,
        *,
        idempotent: bool,
        retry: bool,
        timeout_s: float | None,
        recorder: Recorder | None,
    ) -> None:
        self.capability = names.capability(capability)
        self._idempotent = idempotent
        given: CallOptions = (
            {"retry": retry} if timeout_s is None else {"retry": retry, "timeout_s": timeout_s}
        )
        self._options = NO_OPTIONS.merged(given)
        self._recorder = recorder

    async def run(self, body: Callable[[], Awaitable[Any]]) -> tuple[Reply, Outcome]:
        """Run an asynchronous body to its end. Raises only a cancellation."""
        call, inside = self._begin(anyio.current_effective_deadline() - monotonic())
        outside = current()
        try:
            while True:
                share_s = self._share(call)
                if share_s <= 0:
                    outcome = Outcome(failure=Failure.of(Reason.DEADLINE, executed=Executed.NO))
                    break
                enter(replace(inside, deadline=monotonic() + share_s))
                outcome = await self._attempt(call, body, share_s)
                enter(outside)
                delay_s = self._judge(call, inside, outcome)
                if delay_s is None:
                    break
                await asyncio.sleep(delay_s)
        except asyncio.CancelledError:
            self._tell(call, Outcome(failure=Failure.of(Reason.CANCELLED)), "cancelled")
            raise
        finally:
            enter(outside)
        return self._tell(call, outcome, "ok" if outcome.failure is None else "failed"), outcome

    def run_here(self, body: Callable[[], Any], *, may_wait: bool) -> tuple[Reply, Outcome]:
        """Run a plain body in this thread. Its deadline bounds what it calls and whether it is tried again.

        Without `may_wait` (inside an event loop, which sleeping would block) there is no second attempt.
        """
        call, inside = self._begin(None)
        outside = current()
        try:
            while True:
                share_s = self._share(call)
                if share_s <= 0:
                    outcome = Outcome(failure=Failure.of(Reason.DEADLINE, executed=Executed.NO))
                    break
                enter(replace(inside, deadline=monotonic() + share_s))
                outcome = self._attempt_here(call, body)
                enter(outside)
                delay_s = self._judge(call, inside, outcome)
                if delay_s is None or not may_wait:
                    break
                time.sleep(delay_s)
        finally:
            enter(outside)
        return self._tell(call, outcome, "ok" if outcome.failure is None else "failed"), outcome

    # -- prepare -------------------------------------------------------------------------------------

    def _begin(self, scope_s: float | None) -> tuple[Call, CallContext]:
        """Build the call and what surrounds its body; `scope_s` is what the cancel scope around it has left."""
        now, around = monotonic(), current()
        wall_ms = int(time.time() * 1000)
        trace = Trace(around.trace_id or ids.trace_id(), ids.span_id(), [], around.started_at or wall_ms)
        surrounding_s = None if around.deadline is None else around.deadline - now
        call = Call(
            capability=self.capability,
            kind="request",
            envelope=Envelope(
                source=around.agent_id or LOCAL,
                capability=self.capability,
                session_id=around.session_id,
                task_id=around.task_id,
                tenant=around.tenant,
                trace=trace,
            ),
            options=self._options,
            around=around,
            reach_id=ids.reach_id(),
            began=now,
            began_ms=wall_ms,
            deadline=now + narrow(self._options.timeout_s, DEFAULT_TIMEOUT_S, surrounding_s, scope_s),
        )
        inside = replace(
            around,
            trace_id=trace.trace_id,
            span_id=trace.span_id,
            started_at=trace.started_at,
            chain=(*around.chain, self.capability),
            marks=Marks(),
        )
        return call, inside

    def _share(self, call: Call) -> float:
        may_retry = timeout_may_retry(
            idempotent=self._idempotent,
            keyed=False,
            attempt=len(call.attempts) + 1,
            max_attempts=call.max_attempts,
        )
        return attempt_share_s(call.deadline - monotonic(), may_retry=may_retry)

    # -- run -----------------------------------------------------------------------------------------

    async def _attempt(self, call: Call, body: Callable[[], Awaitable[Any]], share_s: float) -> Outcome:
        attempt = self._note_attempt(call)
        scope = asyncio.timeout(share_s)
        try:
            async with scope:
                outcome = Outcome(await body())
        except TimeoutError as error:
            outcome = Outcome(failure=Failure.of(Reason.DEADLINE)) if scope.expired() else _failed(error)
        except Exception as error:  # noqa: BLE001 - judged, and raised again by whoever asked
            outcome = _failed(error)
        _note_end(call, attempt, outcome)
        return outcome

    def _attempt_here(self, call: Call, body: Callable[[], Any]) -> Outcome:
        attempt = self._note_attempt(call)
        try:
            outcome = Outcome(body())
        except Exception as error:  # noqa: BLE001 - judged, and raised again by whoever asked
            outcome = _failed(error)
        _note_end(call, attempt, outcome)
        return outcome

    def _note_attempt(self, call: Call) -> Attempt:
        attempt = Attempt(
            n=len(call.attempts) + 1,
            subject=LOCAL,
            started_ms=(monotonic() - call.began) * 1000,
            provider=LOCAL,
        )
        call.attempts.append(attempt)
        return attempt

    # -- judge ---------------------------------------------------------------------------------------

    def _judge(self, call: Call, inside: CallContext, outcome: Outcome) -> float | None:
        """Give how long to wait before another attempt; None when this was the last."""
        attempt = call.attempts[-1]
        if outcome.failure is None:
            attempt.decision = "done"
            return None
        inner = inside.marks is not None and inside.marks.retried
        call.inner_retried = call.inner_retried or inner
        decision = decide(
            outcome.failure,
            idempotent=self._idempotent,
            keyed=False,
            attempt=attempt.n,
            left_s=call.deadline - monotonic(),
            streaming_started=False,
            budget_ok=True,
            jitter=random(),
            inner_retried=inner,
            max_attempts=call.max_attempts,
            flagged=is_flagged(outcome.failure),
        )
        attempt.decision = decision.word
        if isinstance(decision, Retry):
            return decision.delay_s
        if isinstance(decision, Unknown):
            outcome.failure = Failure.of(Reason.OUTCOME_UNKNOWN, cause=decision.cause)
        return None

    # -- tell ----------------------------------------------------------------------------------------

    def _tell(self, call: Call, outcome: Outcome, word: str) -> Reply:
        latency_ms = (monotonic() - call.began) * 1000
        failure = outcome.failure
        reply = Reply(
            ok=failure is None,
            data=outcome.value,
            error=failure,
            message_id=call.envelope.message_id,
            provider=LOCAL,
            attempt=max(1, len(call.attempts)),
            latency_ms=latency_ms,
            retried=call.inner_retried or len(call.attempts) > 1,
            reach_id=call.reach_id,
        )
        if reply.retried and call.around.marks is not None:
            call.around.marks.retried = True
        _remember(self._recorder, _record(call, word, failure, reply))
        if failure is not None and failure.reason is Reason.OUTCOME_UNKNOWN:
            _list(call, failure)
        return reply


def _list(call: Call, failure: Failure) -> None:
    """Enter what is unknown on the platform's list, by the bus at hand; without one its record alone has it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        around = ambient.around_thread()
        if around is not None:
            around[0].unknowns.add_from_thread(call, failure)
        return
    bus = ambient.at_hand()
    if bus is not None:
        bus.unknowns.add(call, failure, local=True)


def _failed(error: Exception) -> Outcome:
    known = failure_of(error)
    if known is None:
        return Outcome(error=error, failure=Failure.of(Reason.HANDLER_ERROR))
    return Outcome(error=error, failure=known, foreign=not isinstance(error, ReachError | NotExecuted))


def _note_end(call: Call, attempt: Attempt, outcome: Outcome) -> None:
    attempt.took_ms = (monotonic() - call.began) * 1000 - attempt.started_ms
    if (failure := outcome.failure) is not None:
        attempt.code, attempt.reason, attempt.executed = failure.code, failure.reason, failure.executed


def _record(call: Call, word: str, failure: Failure | None, reply: Reply) -> ReachRecord:
    envelope = call.envelope
    spent_ms = sum(attempt.took_ms for attempt in call.attempts)
    return ReachRecord(
        reach_id=call.reach_id,
        at=call.began_ms,
        capability=call.capability,
        outcome=word,  # type: ignore[arg-type]  # one of the three words, by construction
        code=None if failure is None else failure.code.value,
        reason=None if failure is None else failure.reason.value,
        provider=LOCAL,
        latency_ms=reply.latency_ms,
        retried=reply.retried,
        caller=envelope.source,
        agent_id=call.around.agent_id,
        session_id=envelope.session_id,
        task_id=envelope.task_id,
        tenant=envelope.tenant,
        trace_id=None if envelope.trace is None else envelope.trace.trace_id,
        attempts=call.attempts,
        phases={"admit_ms": 0.0, "wait_ms": spent_ms, "handler_ms": spent_ms},
    )


_writing: Final = threading.Lock()


@functools.cache
def _process_recorder() -> Recorder:
    recorder = default_recorder()
    atexit.register(recorder.close)
    return recorder


def _remember(recorder: Recorder | None, record: ReachRecord) -> None:
    with _writing:  # Guarded functions run in any thread.
        (recorder or _process_recorder()).write(record)
