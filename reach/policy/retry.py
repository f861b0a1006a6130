"""Whether a failed attempt is followed by another (behaviour RETRY-1 to RETRY-7, ERR-2).

Only what is *known about execution* decides:

=========  ==========================================  =====================================================
executed   idempotent or keyed                         neither
=========  ==========================================  =====================================================
`no`       retry, elsewhere first                      the same: nothing was done
`maybe`    retry what another try can mend             never; where nobody told us, the outcome is unknown
`yes`      give up                                     give up
=========  ==========================================  =====================================================

Within that, what repeating cannot mend (a wrong parameter, a missing permission, a spent budget) is given up,
and so is everything once a stream has begun, the attempts, the time or the retry budget are used up, or a
layer below has retried already. The wire's `retryable` is advice for whoever receives the reply; it is not
read here. Every cell of the decision stands in docs/reference/retries.md, and is tested against this page.

============  =====================================================  ======================
what          number                                                 where it comes from
============  =====================================================  ======================
attempts      2, so one retry                                        RETRY-4
base          100 ms, or 2 × the P99 that was seen                   RETRY-4
backoff       base × 2^(n-1) × U(0.5, 1.5), within half of the time  RETRY-4; the half ours
a wait asked  kept in full, with the backoff on top                  ERR-2, RETRY-4
least time    20 ms for an attempt                                   CALL-3's margin
============  =====================================================  ======================

The backoff comes on top of a wait that the far end asks for because the far end asks everybody for the same: those
who were refused together would come back together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from reach.faults import Executed, Reason
from reach.policy.backoff import delay_s
from reach.wire.reply import Failure

MAX_ATTEMPTS: Final = 2
"""One retry; going to the next tier after a failure counts as an attempt (RETRY-4)."""

BACKOFF_BASE_S: Final = 0.1
"""Backoff is base × 2^(n-1) × U(0.5, 1.5) before the n-th retry (RETRY-4)."""

AUTO_FACTOR: Final = 2.0
"""A base that is `auto` is this many times the observed P99 (RETRY-4)."""

LEAST_ATTEMPT_S: Final = 0.020
"""An attempt that would have less than this is not begun: it could only fail (the margin of CALL-3)."""

_HOPELESS: Final = frozenset(
    {
        Reason.SCHEMA,
        Reason.TOO_LARGE,
        Reason.KEY_REUSED,
        Reason.NOT_FOUND,
        Reason.AUTH_DENIED,
        Reason.FORBIDDEN,
        Reason.REMOTE_4XX,
        Reason.QUOTA_EXCEEDED,
        Reason.BUDGET_EXHAUSTED,
        Reason.TLS,
        Reason.OUTCOME_UNKNOWN,
    }
)
"""With `executed=no`: failures of the call itself, not of where it went: the same call would meet them again (ERR-2).
An outcome that is called unknown stays so, whatever is said beside it."""

_MENDABLE: Final = frozenset(
    {
        Reason.DEADLINE,
        Reason.FIRST_BYTE,
        Reason.INSTANCE_GONE,
        Reason.DISCONNECTED,
        Reason.CONNECT,
        Reason.DNS,
        Reason.NO_RESPONDERS,
        Reason.STALE,
    }
)
"""With `executed=maybe`: what another try may mend. A 5xx is, when the far end flagged it (ERR-2)."""

_UNTOLD: Final = frozenset(
    {
        Reason.DEADLINE,
        Reason.FIRST_BYTE,
        Reason.INSTANCE_GONE,
        Reason.DISCONNECTED,
        Reason.CONNECT,
        Reason.DNS,
        Reason.NO_RESPONDERS,
        Reason.STALE,
        Reason.WORKER_LOST,
        Reason.UNMAPPED,
    }
)
"""With `executed=maybe`: nobody told us how it ended (RETRY-2). Where the far end answered, if only with
nonsense, its own word is kept, and `executed=maybe` beside it says the rest (ERR-3)."""

_NOT_ITS_FAULT: Final = frozenset({Reason.STALE, Reason.DISCONNECTED})
"""The instance is as good as any other: our link broke, or it slept and is awake again (design.md, 5)."""

_GOES_ELSEWHERE_NOW: Final = frozenset({Reason.BREAKER_OPEN})
"""`retry_after_ms` says when *this* lane is worth trying; another one need not wait for it."""


class Why(StrEnum):
    """Why there was no further attempt; goes into the record."""

    EXECUTED = "executed"
    """The far end did it, or says that it did."""
    HOPELESS = "hopeless"
    """The same call would fail in the same way."""
    NOT_REPEATABLE = "not_repeatable"
    """It may have been done, and it is neither idempotent nor keyed."""
    CALLER_LEFT = "caller_left"
    """Nobody waits for an answer any more."""
    STREAM_BEGAN = "stream_began"
    """The caller has seen the first frame (RETRY-3)."""
    INNER_RETRIED = "inner_retried"
    """A layer below has retried already (RETRY-7)."""
    ATTEMPTS = "attempts"
    """All attempts are used (RETRY-4)."""
    BUDGET = "retry_budget"
    """Too many of the lane's calls are retries already (RETRY-6)."""
    TIME = "time"
    """The deadline, or the wait that the far end asks for, leaves too little."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after `delay_s` seconds; `elsewhere` asks for another instance if there is one (RETRY-5)."""

    delay_s: float
    elsewhere: bool

    @property
    def word(self) -> str:
        """The decision as the record has it."""
        return "retry_elsewhere" if self.elsewhere else "retry"


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Return the failure as it is."""

    why: Why

    @property
    def word(self) -> str:
        """The decision as the record has it."""
        return f"give_up:{self.why}"


@dataclass(frozen=True, slots=True)
class Unknown:
    """Return `OUTCOME_UNKNOWN` with `cause` in place of the failure: it may have happened (RETRY-2)."""

    cause: Reason

    @property
    def word(self) -> str:
        """The decision as the record has it."""
        return f"unknown:{self.cause}"


Decision = Retry | GiveUp | Unknown


def auto_base_s(p99_ms: float) -> float:
    """Give the base of the backoff where it is `auto`, in seconds. Raises `ValueError` for what is no latency."""
    if not 0 <= p99_ms < math.inf:
        raise ValueError(f"p99_ms is a latency, 0 or more, not {p99_ms}")
    return AUTO_FACTOR * p99_ms / 1000


def timeout_may_retry(
    *, idempotent: bool, keyed: bool, attempt: int, max_attempts: int = MAX_ATTEMPTS
) -> bool:
    """Whether a timeout of this attempt could be followed by another: what CALL-3 asks before sharing."""
    return (idempotent or keyed) and attempt < max_attempts


def decide(  # noqa: PLR0911, PLR0913 - one keyword a fact, one line a rule, in the order in which they hold
    failure: Failure,
    *,
    idempotent: bool,
    keyed: bool,
    attempt: int,
    left_s: float,
    streaming_started: bool,
    budget_ok: bool,
    jitter: float,
    inner_retried: bool,
    max_attempts: int = MAX_ATTEMPTS,
    flagged: bool = False,
    base_s: float = BACKOFF_BASE_S,
) -> Decision:
    """Decide what follows a failed attempt.

    `idempotent` is the capability's declaration and `keyed` the presence of an idempotency key; `attempt`
    counts from 1; `left_s` is what the call has left in seconds; `budget_ok` the retry budget's answer;
    `jitter` is uniform in [0, 1); `inner_retried` is `Reply.retried` of the failed reply; `flagged` says that
    the far end calls its own failure repeatable (502, 503, 504, or `retryable: true` in its body).
    """
    reason = failure.reason
    if failure.executed is Executed.YES:
        return GiveUp(Why.EXECUTED)
    if reason is Reason.CANCELLED:
        return GiveUp(Why.CALLER_LEFT)
    if streaming_started:
        return GiveUp(Why.STREAM_BEGAN)
    if failure.executed is Executed.MAYBE and not (idempotent or keyed):
        return Unknown(reason) if reason in _UNTOLD else GiveUp(Why.NOT_REPEATABLE)
    if not _is_mendable(failure, flagged=flagged):
        return GiveUp(Why.HOPELESS)
    if inner_retried:
        return GiveUp(Why.INNER_RETRIED)
    if attempt >= max_attempts:
        return GiveUp(Why.ATTEMPTS)
    if not budget_ok:
        return GiveUp(Why.BUDGET)
    asked_s = _asked_s(failure)
    room_s = left_s - asked_s
    if room_s <= 0:
        return GiveUp(Why.TIME)
    wait_s = asked_s + delay_s(attempt, base_s=base_s, jitter=jitter, cap_s=room_s / 2)
    if left_s - wait_s < LEAST_ATTEMPT_S:
        return GiveUp(Why.TIME)
    return Retry(wait_s, elsewhere=reason not in _NOT_ITS_FAULT)


def _is_mendable(failure: Failure, *, flagged: bool) -> bool:
    if failure.executed is Executed.NO:
        return failure.reason not in _HOPELESS
    return failure.reason in _MENDABLE or (failure.reason is Reason.REMOTE_5XX and flagged)


def _asked_s(failure: Failure) -> float:
    """Give the seconds that whoever is asked next wants to be left alone."""
    if failure.retry_after_ms is None or failure.reason in _GOES_ELSEWHERE_NOW:
        return 0.0
    return failure.retry_after_ms / 1000
