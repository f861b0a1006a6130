"""Step 5 of a call: what follows a failed attempt, from what is known about execution.

The rules are `reach.policy.retry`'s; here is what they are asked with: the lane's retry budget (behaviour RETRY-6),
whether our own link is new, whether the instance had left. Each decision goes into the record of its attempt, so
that for every attempt it can be read why there was, or was not, another.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

from reach.call.lanes import NOBODY
from reach.call.native import is_flagged
from reach.chance import random
from reach.faults import Reason
from reach.policy.retry import BACKOFF_BASE_S, Decision, GiveUp, Retry, Unknown, decide
from reach.wire.reply import Failure, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from reach.bus.connection import Connection
    from reach.call.call import Call
    from reach.call.context import Marks
    from reach.call.lanes import AnyPermit, Lanes
    from reach.observe.metrics import Metrics
    from reach.registry.cards import CardDirectory
    from reach.wire.card import Card
    from reach.wire.record import Attempt

RETURN_WITHIN_S: Final = 3.0
"""For so long after our link came back a known capability that nobody serves may only not be back yet."""

RETURN_S: Final = 0.4
"""What a call then waits (× 0.5 to 1.5, and at most half of its time) before it asks again, which costs nobody."""


MOST_STALE: Final = 3
"""So often a call may be refused by instances that slept before it counts; who is awake serves it meanwhile."""

_ENDED: Final = frozenset({Reason.DISCONNECTED, Reason.INSTANCE_GONE})
"""A link or an instance that ended takes what was under way with it, once. Repeating that is no storm on a lane that
fails, so the retry budget, which is counted against it, does not forbid it."""

_INSTANCE_FAULTS: Final = frozenset(
    {Reason.DEADLINE, Reason.FIRST_BYTE, Reason.IDLE_STREAM, Reason.INSTANCE_GONE, Reason.STREAM_CUT}
)
"""Failures of one instance, most likely: its neighbours may be well."""


class Judge:
    """Decides what follows the failed attempts of one client."""

    def __init__(
        self, connection: Connection, lanes: Lanes, metrics: Metrics, *, directory: CardDirectory
    ) -> None:
        self._connection = connection
        self._lanes = lanes
        self._directory = directory
        self._metrics = metrics
        self.link_back = -RETURN_WITHIN_S
        """When (loop seconds) our link came back the last time."""
        self.on_retry: Callable[[Marks], None] | None = None
        """Set by an agent that serves here: passes the word on to the caller of the handler that has these marks."""

    def judge(self, call: Call, outcome: Reply | Failure) -> tuple[Decision, Reply | Failure]:
        """Decide what follows a failed attempt; gives the outcome too, which may be a truer one now."""
        failure = outcome.error if isinstance(outcome, Reply) else outcome
        if failure is None:
            failure = Failure.of(Reason.UNMAPPED)
        if failure.reason is Reason.STALE:
            self._connection.broker_time.doubt()
        attempt = call.attempts[-1]
        now = monotonic()
        # On the group's subject "nobody" means nobody who takes part: unless somebody stands by, there is no elsewhere
        # to go to (CALL-13: at once).
        absent = failure.reason is Reason.NO_RESPONDERS
        nobody = absent and attempt.subject.startswith("cap.")
        # Unless our link is new: then those whom we know are on their way back to the server, too.
        returning = nobody and call.card is not None and now - self.link_back < RETURN_WITHIN_S
        # An instance, a lane or a tier of whose end we had not heard: nothing was done and nobody was troubled, so
        # choosing again, elsewhere, costs no attempt.
        missed = absent and self._has_elsewhere(call, attempt, returning=returning)
        # It slept, is awake again, and did nothing: that costs no attempt either, unless it goes on and on.
        asleep = failure.reason is Reason.STALE and len(call.attempts) <= MOST_STALE
        again = missed or returning or asleep
        tried = len(call.attempts)  # A second request beside a slow first one is an attempt as well.
        lane = call.lane or self._lanes.of(call.capability, NOBODY)
        decision = decide(
            failure,
            idempotent=call.idempotent,
            keyed=call.keyed,
            attempt=tried,
            left_s=call.deadline - now,
            streaming_started=call.data_frames > 0,
            budget_ok=again or failure.reason in _ENDED or lane.budget.may_retry(now),
            jitter=random(),
            inner_retried=call.inner_retried or (call.around.again and not again),
            max_attempts=_most(call, tried, nobody=nobody, again=again),
            flagged=is_flagged(failure),
            base_s=0.0 if missed else RETURN_S / 2 ** (tried - 1) if returning else BACKOFF_BASE_S,
        )
        attempt.decision = decision.word
        if isinstance(decision, GiveUp):
            self._metrics.retries_refused.add(call.capability, decision.why)
        if isinstance(decision, Unknown):
            return decision, Failure.of(Reason.OUTCOME_UNKNOWN, cause=decision.cause)
        if isinstance(decision, Retry):
            if not again:
                lane.budget.retried(now)
                lane.account.retries += 1
                if call.around.marks is not None:
                    self.announce(call.around.marks)
            if (decision.elsewhere or asleep) and attempt.instance is not None:
                call.avoid = {attempt.instance, *(call.avoid or ())}
        return decision, outcome

    def _has_elsewhere(self, call: Call, attempt: Attempt, *, returning: bool) -> bool:
        """Whether a call that found nobody where it went may find somebody if it chooses again.

        Of a tier that nobody answered for all are to be avoided, so that the next one's turn comes (ROUTE-1).
        """
        to = attempt.subject
        if to.startswith("inst."):
            return True
        if sum(one.subject == to for one in call.attempts) > 1:
            return False
        if to.startswith("lane."):
            return call.envelope.target is None
        if returning or not to.startswith("cap.") or call.envelope.target is not None:
            return False
        tiers = _tiers(call.capability, self._directory.cards(call.capability))
        if len(tiers) < 2:  # noqa: PLR2004 - the one that takes part, and one that stands by
            return False
        call.avoid = {*tiers[min(tiers)], *(call.avoid or ())}
        return True

    def blame(
        self,
        call: Call,
        attempt: Attempt,
        failure: Failure,
        now: float,
        took_ms: float,
        permit: AnyPermit | None,
    ) -> None:
        """Charge a failed attempt to its lane, and to its instance; without a name, to the only lane that there is."""
        provider = attempt.provider or self._directory.only_provider(call.capability)
        if provider is None and permit is None:
            return
        call.lane = lane = self._lanes.of(call.capability, provider) if provider is not None else call.lane
        if lane is None:
            return
        instance = attempt.instance
        if instance is not None and permit is None and instance in self._lanes.avoided(call.capability, now):
            return  # What fails there is known by now, and does not speak against its neighbours.
        counts = self._lanes.bad(
            lane, now, failure, waited_ms=took_ms, permit=permit, first=attempt.n == 1, instance=instance
        )
        if instance is None or not counts:
            return
        if lane.outliers.failed(instance, now) or failure.reason in _INSTANCE_FAULTS:
            neighbours = sum(
                card.agent_id == lane.provider for card in self._directory.cards(call.capability)
            )
            self._lanes.shun(call.capability, instance, now, of=neighbours)

    def spare(self, call: Call, attempt: Attempt, reply: Reply, permit: AnyPermit | None) -> None:
        """Note an answer that was kept of an earlier call (`duplicate`): it says nothing of how well its lane does now.

        What it cost is charged only to whoever made that call, which may have been an attempt of this one.
        """
        if permit is not None and reply.provider is not None:
            self._lanes.left(self._lanes.of(call.capability, reply.provider), monotonic(), permit)
        self._metrics.attempt_finished(call.capability, attempt.provider, reply.error)
        if attempt.n > 1 and reply.cost is not None:
            call.cost += reply.cost
        attempt.decision = "done"
        if reply.error is not None:
            attempt.code, attempt.reason = reply.error.code, reply.error.reason
            attempt.executed = reply.error.executed

    def announce(self, marks: Marks) -> None:
        """Tell whoever waits for the handler of `marks` that a call inside is about to be made again (RETRY-7).

        Should the handler never answer, because it hangs or its process ends, its caller would repeat it, and with it
        what has been repeated already.
        """
        if not marks.retried:
            marks.retried = True
            if self.on_retry is not None:
                self.on_retry(marks)
            for waiting in marks.also or ():
                self.announce(waiting)


def _tiers(capability: str, cards: Iterable[Card]) -> dict[int, list[str]]:
    """Give the instances of each tier of a capability, by its priority."""
    tiers: dict[int, list[str]] = {}
    for card in cards:
        served = next((one for one in card.capabilities if one.tag == capability), None)
        if served is not None:
            tiers.setdefault(served.priority, []).append(card.instance)
    return tiers


def _most(call: Call, attempt: int, *, nobody: bool, again: bool) -> int:
    """How many attempts the call may have in all, as things are after its `attempt`-th."""
    if not call.options.retry:
        return call.max_attempts
    if again:
        return attempt + 1
    return attempt if nobody else call.max_attempts
