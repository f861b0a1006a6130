"""Step 6 of a call: the reply that its caller sees, its one record, its figures, and what took a failure's place.

Every call ends here, whatever ends it, cancellation included, and is counted and recorded exactly once.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Final

from reach.call.options import NO_FALLBACK
from reach.faults import Advice, Code, Executed, Reason
from reach.policy.degrade import DegradeBook, notice
from reach.policy.fallback import Fallback, Fallbacks, Static, fall_back
from reach.wire.record import ReachRecord
from reach.wire.reply import Failure, Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from reach.call.call import Call
    from reach.observe.metrics import Metrics
    from reach.observe.records import Recorder
    from reach.registry.cards import CardDirectory
    from reach.registry.routes import Routes

_log = logging.getLogger("reach.call")

CACHE: Final = "cache"
"""The metrics' provider of an answer that was given again: no lane's latency is flattered by it."""

REPEAT: Final = (
    "It is not known whether this was done. Do not do it in another way: repeat it later with the same "
    "idempotency key."
)

_AGAIN: Final = frozenset({"retry", "retry_elsewhere"})
"""Decisions after which the record has another attempt, unless it says more."""


class Teller:
    """Ends the calls of one client; `node` is the process that calls."""

    def __init__(
        self,
        *,
        directory: CardDirectory,
        routes: Routes,
        recorder: Recorder,
        metrics: Metrics,
        node: str,
    ) -> None:
        self._directory = directory
        self._routes = routes
        self._recorder = recorder
        self._metrics = metrics
        self._node = node
        self._degraded = DegradeBook()
        self.on_unknown: Callable[[Call, Failure], None] | None = None
        """Told of failed calls, for the list of those whose outcome is unknown."""

    def tell(self, call: Call, outcome: Reply | Failure) -> Reply:
        """Make the reply that the caller sees, and the record, metrics and mark that remain."""
        now = monotonic()
        latency_ms = (now - call.began) * 1000
        if isinstance(outcome, Reply):
            reply = outcome
            if self._is_usual(call, reply):
                reply.latency_ms = latency_ms
                reply.reach_id = call.reach_id
                self.remember(call, "ok", None, latency_ms, now=now)
                return reply
        else:
            outcome = self._unregistered(call, outcome)
            reply = Reply(ok=False, error=outcome, message_id=call.envelope.message_id)
        last = call.attempts[-1] if call.attempts else None
        if last is not None:
            reply.instance = reply.instance or last.instance
            reply.provider = reply.provider or last.provider
        if reply.error is not None:
            reply.error = self._completed(call, reply.error)
            if reply.error.reason is Reason.OUTCOME_UNKNOWN and self.on_unknown is not None:
                self.on_unknown(call, reply.error)
        reply.attempt = len(call.attempts) or reply.attempt
        reply.latency_ms = latency_ms
        reply.reach_id = call.reach_id
        reply.retried = call.inner_retried or len(call.attempts) > 1
        if reply.retried and call.around.marks is not None:
            call.around.marks.retried = True
        if reply.trace is not None:
            if call.around.marks is not None:
                call.around.marks.passed_through(reply.trace.hops)
            if reply.ok and not call.options.trace:
                reply.trace = None
        if reply.error is not None and (call.options.fallback is not NO_FALLBACK or call.stale is not None):
            self._fall_back(call, reply, reply.error, now)
        if call.level or reply.degraded or len(self._degraded):
            self._mark_degraded(call, reply, now)
        failure = reply.error
        outcome_word = "ok" if failure is None else "cancelled" if call.given_up else "failed"
        self.remember(call, outcome_word, failure, latency_ms, now=now)
        return reply

    def _is_usual(self, call: Call, reply: Reply) -> bool:
        """Whether a reply is as nearly all are: a result at the first attempt, with nothing to be said beside it."""
        return (
            reply.ok
            and reply.attempt == 1
            and len(call.attempts) == 1
            and not (reply.retried or call.inner_retried or reply.degraded or call.level)
            and reply.trace is None
            and reply.provider is not None
            and not len(self._degraded)
        )

    def _mark_degraded(self, call: Call, reply: Reply, now: float) -> None:
        """Make it visible that an answer is not the usual one: in the reply, and to people when it lasts."""
        if call.level and reply.ok:
            reply.degraded = True
            reply.degrade_level = max(reply.degrade_level, call.level)
        if call.shared:
            return  # Those who wait for it are told.
        due = self._degraded.replied(
            call.envelope.source or self._node, call.capability, now=now, degraded=reply.degraded
        )
        if due is not None:
            if due.notice and reply.notice is None:
                reply.notice = notice()
            if due.alert:
                _log.warning(
                    "answers of %s have been degraded for %.0f s (%d in a row)",
                    call.capability,
                    due.since_s,
                    due.run,
                )

    def _fall_back(self, call: Call, reply: Reply, failure: Failure, now: float) -> None:
        """Put something else in a failure's place, where that hides nothing that the caller has to know (BREAK-6).

        First what is still kept of an earlier answer, then the caller's own value.
        """
        own, stale = call.options.fallback, call.stale
        decision = fall_back(
            failure,
            configured=Fallbacks(
                stale_if_error_s=None if stale is None else stale.gone_at - stale.fresh_until,
                static=None if own is NO_FALLBACK else Static(own),
            ),
            idempotent=call.idempotent,
            streaming_started=call.data_frames > 0,
            expired_for_s=None if stale is None else stale.expired_for_s(now),
            tier_allowed=False,
        )
        if call.attempts:
            last = call.attempts[-1]
            last.decision = f"{last.decision} {decision.word}".lstrip()
        if isinstance(decision, Fallback):
            reply.ok, reply.data, reply.error = True, own, None
            if decision.stale and stale is not None:
                kept = stale.answer.reply_to(call, stale=True)
                reply.data, reply.cached, reply.stale = kept.data, True, True
                reply.provider, reply.instance = kept.provider, kept.instance
                self._metrics.cache.add(call.capability, "stale")
            reply.degraded = True
            call.level = max(1, call.level)

    def _unregistered(self, call: Call, failure: Failure) -> Failure:
        """Give the failure, or that there is no such capability, where the table knows all that ever were (CALL-13)."""
        if (
            failure.reason is not Reason.NO_RESPONDERS
            or call.card is not None
            or not self._routes.complete
            or self._routes.registered(call.capability)
        ):
            return failure
        near = self._routes.nearest(call.capability) or self._directory.nearest(call.capability)
        found = Failure.of(Reason.NOT_FOUND)
        found.message += f" Nobody ever registered {call.capability!r}"
        found.message += f"; near: {', '.join(near)}." if near else "."
        return found

    def _completed(self, call: Call, failure: Failure) -> Failure:
        """Say in a failure, and in its record, what is known of the call as a whole."""
        last = call.attempts[-1] if call.attempts else None
        if last is not None and last.decision in _AGAIN:
            last.decision += f" not_sent:{failure.reason}"
        self._localise(call, failure)
        if failure.executed is Executed.NO:
            # The last attempt did nothing; an earlier one may have.
            failure.executed = call.executed
        astray = failure.code is Code.CONN_REFUSED or failure.advice is Advice.TRY_OTHER
        if astray and failure.executed is Executed.MAYBE and call.keyed and not call.idempotent:
            # Nobody may do it in another way (RETRY-2), and the key finds out whether it was done.
            known = [one.reason for one in call.attempts if one.executed is Executed.MAYBE and one.reason]
            reason = Reason(known[0]) if known else failure.reason
            failure = Failure.of(reason, REPEAT, executed=Executed.MAYBE, retryable=True)
            failure.advice = Advice.WAIT
        return failure

    def _localise(self, call: Call, failure: Failure) -> None:
        """Say what the caller can use: near names for a capability that nobody serves, agents for a wrong target."""
        if failure.reason is not Reason.NO_RESPONDERS or call.saved is not None:
            return
        target = call.envelope.target
        if (
            target is not None
            and call.card is not None
            and not self._directory.serves(target, call.capability)
        ):
            agents = sorted({card.agent_id for card in self._directory.cards(call.capability)})
            failure.message += (
                f" No agent {target!r} serves {call.capability!r}; there are: {', '.join(agents)}."
            )
        if call.card is None:
            near = self._directory.nearest(call.capability)
            if near:
                failure.message = (
                    f"{failure.message} Nobody serves {call.capability!r}; near: {', '.join(near)}."
                )

    def tell_cancelled(self, call: Call) -> Reply:
        """Record a call whose caller left; the reply is for a caller who left its round only."""
        latency_ms = (monotonic() - call.began) * 1000
        failure = Failure.of(Reason.CANCELLED, executed=call.executed)
        last = call.attempts[-1] if call.attempts else None
        if last is not None and not last.decision:
            last.took_ms = latency_ms - last.started_ms
            last.decision = "cancelled"
        elif last is not None and last.decision in _AGAIN:
            last.decision += " cancelled"
        self.remember(call, "cancelled", failure, latency_ms)
        return Reply(
            ok=False,
            error=failure,
            message_id=call.envelope.message_id,
            attempt=max(1, len(call.attempts)),
            latency_ms=latency_ms,
            reach_id=call.reach_id,
        )

    def remember(
        self,
        call: Call,
        outcome: str,
        failure: Failure | None,
        latency_ms: float,
        *,
        now: float | None = None,
    ) -> None:
        """Write the one record of a call and count it."""
        lane = call.lane
        if failure is None and lane is not None and not call.shared:
            lane.tally.good(latency_ms)
        elif not call.shared:  # Its waiters are counted.
            saved = call.saved
            provider = CACHE if saved is not None and saved.cached else call.provider
            self._metrics.call_finished(call.capability, provider, failure, latency_ms)
        if not self._recorder.wants(ok=outcome == "ok", now=now):
            return
        envelope = call.envelope
        last = call.attempts[-1] if call.attempts else None
        if call.local_share and last is not None:
            last.decision = f"{last.decision} local_share".lstrip()
        record = ReachRecord(
            reach_id=call.reach_id,
            at=call.began_ms,
            capability=call.capability,
            kind=call.kind,
            outcome=outcome,  # type: ignore[arg-type]  # one of the three words, by construction
            code=None if failure is None else failure.code.value,
            reason=None if failure is None else failure.reason.value,
            provider=None if last is None else last.provider,
            instance=None if last is None else last.instance,
            node=self._node,
            latency_ms=latency_ms,
            degrade_level=call.level,
            retried=call.inner_retried or len(call.attempts) > 1,
            caller=envelope.source,
            agent_id=call.around.agent_id,
            session_id=envelope.session_id,
            task_id=envelope.task_id,
            tenant=envelope.tenant,
            trace_id=None if envelope.trace is None else envelope.trace.trace_id,
            attempts=call.attempts,
            phases={
                "admit_ms": max(0.0, (call.admitted - call.began) * 1000) if call.admitted else latency_ms,
                "wait_ms": sum(attempt.took_ms for attempt in call.attempts),
                "handler_ms": call.handler_ms,
            },
        )
        if call.saved is not None or call.shared:
            _say_shared(record, call)
        self._recorder.put(record)


def _say_shared(record: ReachRecord, call: Call) -> None:
    """Say in a record that others had the same call, or had it before."""
    record.waiters = call.waiters
    saved = call.saved
    if saved is None:
        return
    record.provider, record.instance = saved.provider, saved.instance
    record.cached, record.stale = saved.cached, saved.stale
    if saved.batched:
        record.batched_with = saved.reach_id
    else:
        record.coalesced_with = saved.reach_id
    if not saved.cached:
        record.phases["wait_ms"] = record.latency_ms - record.phases["admit_ms"]
