"""Whether, and when, a second request is sent beside a first that is slow (RETRY-8).

A hedge buys a shorter tail with a second execution: so it is off unless asked for, and only for what is declared
idempotent. An idempotency key is no leave: two requests under one key meet in the store, where the second waits for
the first. It is sent once, to another instance, when the first has taken longer than 95 % of the lane's calls do;
one call in twenty, within the retry budget, which is asked when the moment has come. Whoever answers last is
cancelled; that is the pipeline's work.

===========  ============================  =============================================
what         number                        where it comes from
===========  ============================  =============================================
after        the lane's P95                RETRY-8
at least     5 ms                          ours: a timer is not finer, a message not free
time left    20 ms for the second request  CALL-3's margin
===========  ============================  =============================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from reach.policy.retry import LEAST_ATTEMPT_S

LEAST_AFTER_S: Final = 0.005


class WhyNot(StrEnum):
    """Why there was no second request; goes into the record."""

    OFF = "off"
    """Nobody asked for hedging."""
    NOT_IDEMPOTENT = "not_idempotent"
    """Twice is not as good as once, as far as the capability says."""
    KEYED = "keyed"
    """Two requests with one idempotency key would wait for each other."""
    ONCE = "once"
    """There was a second request already, or the first was a retry."""
    STREAM = "stream"
    """The answer comes in parts, and the caller may have seen some."""
    ALONE = "alone"
    """There is no other instance: the slow one would only have more to do."""
    UNMEASURED = "unmeasured"
    """Too little is known of the lane to call anything slow."""
    TIME = "time"
    """The deadline leaves too little for a second request."""
    BUDGET = "retry_budget"
    """Too many of the lane's calls are repeated already (RETRY-6)."""


@dataclass(frozen=True, slots=True)
class Hedge:
    """Send a second request when the first has had `after_s` seconds without an answer."""

    after_s: float


@dataclass(frozen=True, slots=True)
class NoHedge:
    """Wait for the first."""

    why: WhyNot


_OFF: Final = NoHedge(WhyNot.OFF)


def plan(
    *,
    enabled: bool,
    idempotent: bool,
    keyed: bool,
    streaming: bool,
    attempts: int,
    elsewhere: bool,
    p95_ms: float | None,
    left_s: float,
) -> Hedge | NoHedge:
    """Decide, when the first request is sent, whether a second one may follow and when.

    `attempts` counts the requests of this call that were sent, the first included; `elsewhere` says that there is
    another usable instance; `p95_ms` is the lane's, None while too few calls were seen; `left_s` is what the call
    has left.
    """
    if not enabled:
        return _OFF
    against = (
        (not idempotent, WhyNot.NOT_IDEMPOTENT),
        (keyed, WhyNot.KEYED),
        (streaming, WhyNot.STREAM),
        (attempts != 1, WhyNot.ONCE),
        (not elsewhere, WhyNot.ALONE),
    )
    for stands, why in against:
        if stands:
            return NoHedge(why)
    if p95_ms is None:
        return NoHedge(WhyNot.UNMEASURED)
    after_s = max(LEAST_AFTER_S, p95_ms / 1000)
    if left_s - after_s < LEAST_ATTEMPT_S:
        return NoHedge(WhyNot.TIME)
    return Hedge(after_s)


def due(planned: Hedge, *, left_s: float, budget_ok: bool) -> Hedge | NoHedge:
    """Decide when the planned moment has come and no answer has: the time and the budget are as they are now."""
    if left_s < LEAST_ATTEMPT_S:
        return NoHedge(WhyNot.TIME)
    return planned if budget_ok else NoHedge(WhyNot.BUDGET)
