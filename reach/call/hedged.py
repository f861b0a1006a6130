"""A second request beside a slow first one, and which of the two is waited for (behaviour RETRY-8).

Off unless the caller asks for it, and only for capabilities that are declared idempotent; the rules are
`reach.policy.hedge`'s. The one that answers well first is the call's; the other is cancelled, at the agent too.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from reach import ids
from reach.call.call import Outlived
from reach.faults import Reason
from reach.policy.hedge import Hedge, due, plan
from reach.wire.reply import Failure, Reply

if TYPE_CHECKING:
    from reach.bus.pending import Pending
    from reach.call.call import Call
    from reach.call.lanes import Lane
    from reach.call.outbound import Outbound
    from reach.policy.retrybudget import RetryBudget


async def hedged(out: Outbound, call: Call, first: Pending) -> Pending:
    """Give the place whose answer is the call's: `first`, or that of a second request."""
    known = out.lanes.known(call.capability)
    p95_ms = max((lane.breaker.usual_p95_ms or 0.0 for lane in known), default=0.0) or None
    planned = plan(
        enabled=True,
        idempotent=call.idempotent,
        keyed=call.keyed,
        streaming=False,
        attempts=len(call.attempts),
        elsewhere=len(out.directory.cards(call.capability)) > 1,
        p95_ms=p95_ms,
        left_s=call.deadline - monotonic(),
    )
    if not isinstance(planned, Hedge):
        return first
    await asyncio.wait({first.future}, timeout=planned.after_s)
    if first.future.done():
        return first
    lane = _lane_of(out, call, first)
    second = None if lane is None else _second(out, call, first, planned, lane.budget)
    if lane is None or second is None:
        return first
    try:
        await asyncio.wait({first.future, second.future}, return_when=asyncio.FIRST_COMPLETED)
        if not _is_good(first) and not _is_good(second):
            await asyncio.wait({first.future, second.future})
    except asyncio.CancelledError:
        _settle_loser(out, call, second, lost_at=-1, word="cancelled")
        call.attempts.append(call.attempts.pop(0))  # The last one is whose end the caller of this notes.
        raise
    winner, loser = (second, first) if _is_good(second) and not _is_good(first) else (first, second)
    _settle_loser(out, call, loser, lost_at=0 if loser is first else -1)
    if winner is first:
        out.leave_lane(call)  # The place, and the permit where it was a probe, are the second one's.
        # The attempt that counts is the last one: what is judged, and noted next.
        call.attempts.append(call.attempts.pop(0))
    else:
        lane.budget.call(monotonic())  # Of second attempts nobody else counts that there was a call.
    return winner


def _lane_of(out: Outbound, call: Call, first: Pending) -> Lane | None:
    """Give the lane that is slow, as far as is known who has the first request."""
    if first.accepted is not None:
        return out.lanes.of(call.capability, _provider(first.accepted))
    return next(iter(out.lanes.known(call.capability)), None)


def _provider(instance: str) -> str:
    return instance.rpartition("-")[0]


def _second(out: Outbound, call: Call, first: Pending, planned: Hedge, budget: RetryBudget) -> Pending | None:
    """Send the second request elsewhere; None where the time, the budget or the choice does not allow it."""
    now = monotonic()
    verdict = due(planned, left_s=call.deadline - now, budget_ok=budget.may_retry(now))
    if not isinstance(verdict, Hedge):
        return None
    message_id = call.envelope.message_id
    avoid = call.avoid
    out.leave_lane(call)  # From here on the second one holds the place.
    try:
        if first.accepted is not None:
            call.avoid = {first.accepted, *(avoid or ())}
        # Another id: a word to one of the two must not reach the other.
        call.envelope.message_id = ids.new_id()
        second = out.publish_small(call, out.choose(call))
    except Outlived:
        second = None
    finally:
        call.envelope.message_id = message_id
        call.avoid = avoid
    if second is None:
        out.leave_lane(call)  # It was chosen, and not asked.
    else:
        budget.retried(now)
    return second


def _is_good(pending: Pending) -> bool:
    if not pending.future.done() or pending.future.cancelled():
        return False
    outcome = pending.future.result()
    return isinstance(outcome, Reply) and outcome.ok


def _settle_loser(
    out: Outbound, call: Call, loser: Pending, *, lost_at: int, word: str = "hedge_lost"
) -> None:
    """Cancel the request that is not waited for any more, here and at the agent."""
    attempt = call.attempts[lost_at]
    attempt.instance = loser.accepted or attempt.instance
    if attempt.instance is not None:
        attempt.provider = _provider(attempt.instance)
    attempt.took_ms = (monotonic() - loser.opened) * 1000
    attempt.decision = word
    out.metrics.attempt_finished(call.capability, attempt.provider, Failure.of(Reason.CANCELLED))
    out.mux.cancel(loser)
