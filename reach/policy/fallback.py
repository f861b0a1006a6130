"""What a caller gets instead of a failure, where something else is configured (BREAK-6).

In this order: what a cache still holds, the next tier, a value that was written down beforehand. Each is marked
degraded, always: an answer that is not the usual one never passes for it.

A fallback covers what is not available. It never covers what the caller has to know: a mistake of its own, a
permission, a limit of its own, that it left, or that something may have been done. So after `executed=maybe` or
`yes` a value takes the failure's place only for what is declared idempotent; a key does not make it so. And it
never follows data of a stream that were seen already. Going to the next tier is another attempt: whether that is
allowed is `reach.policy.retry`'s to say, and is asked there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from reach.faults import Executed, Reason
from reach.wire.reply import Failure

COVERED: Final = frozenset(
    {
        Reason.NO_RESPONDERS,
        Reason.CONNECT,
        Reason.DNS,
        Reason.TLS,
        Reason.DISCONNECTED,
        Reason.STALE,
        Reason.BREAKER_OPEN,
        Reason.INSTANCE_GONE,
        Reason.WORKER_LOST,
        Reason.DEADLINE,
        Reason.FIRST_BYTE,
        Reason.IDLE_STREAM,
        Reason.OVERLOADED,
        Reason.REMOTE_429,
        Reason.REMOTE_5XX,
        Reason.NON_JSON_BODY,
        Reason.STREAM_CUT,
        Reason.HANDLER_ERROR,
        Reason.BAD_RESULT,
        Reason.UNMAPPED,
    }
)
"""Failures of whoever was to answer; all others are the caller's to know."""


class Source(StrEnum):
    """Where a degraded answer comes from."""

    STALE_CACHE = "stale_cache"
    NEXT_TIER = "next_tier"
    STATIC = "static"


class WhyNone(StrEnum):
    """Why the failure is told as it is; goes into the record."""

    NOT_COVERED = "not_covered"
    """The failure is something that the caller has to know."""
    MAY_HAVE_HAPPENED = "may_have_happened"
    """It may have been done, and is not declared idempotent (RETRY-2)."""
    STREAM_BEGAN = "stream_began"
    """The caller has seen the first part of the usual answer (RETRY-3)."""
    NOTHING = "nothing"
    """Nothing is configured, or nothing of it is there."""


@dataclass(frozen=True, slots=True)
class Static:
    """A value that was written down beforehand; a class of its own, since None is a value too."""

    value: Any


@dataclass(frozen=True, slots=True)
class Fallbacks:
    """What a capability's owner has configured; nothing by default.

    `stale_if_error_s` is how old beyond its time to live a cached answer may be; None does not use it.
    """

    stale_if_error_s: float | None = None
    next_tier: bool = False
    static: Static | None = None


NONE: Final = Fallbacks()


@dataclass(frozen=True, slots=True)
class Fallback:
    """Take the answer from `source`; the reply is degraded, and stale if it comes from the cache."""

    source: Source

    @property
    def degraded(self) -> bool:
        """Always: that it is degraded is not to be forgotten."""
        return True

    @property
    def stale(self) -> bool:
        """`Reply.stale`."""
        return self.source is Source.STALE_CACHE

    @property
    def word(self) -> str:
        """The decision as the record has it."""
        return f"fallback:{self.source}"


@dataclass(frozen=True, slots=True)
class NoFallback:
    """Tell the failure as it is."""

    why: WhyNone

    @property
    def word(self) -> str:
        """The decision as the record has it."""
        return f"no_fallback:{self.why}"


def fall_back(
    failure: Failure,
    *,
    configured: Fallbacks,
    idempotent: bool,
    streaming_started: bool,
    expired_for_s: float | None,
    tier_allowed: bool,
) -> Fallback | NoFallback:
    """Decide what takes the place of a failure after which there is no retry within its tier.

    Args:
        failure: What the call would end with.
        configured: What its capability allows.
        idempotent: The capability's declaration.
        streaming_started: Whether the caller has seen data of the answer.
        expired_for_s: For how many seconds a cached answer to this very call is past its time to live; 0 or less
            when it is fresh, None when there is none.
        tier_allowed: Whether a lower tier has a usable lane, and another attempt may be made there.
    """
    if failure.reason not in COVERED:
        return NoFallback(WhyNone.NOT_COVERED)
    if streaming_started:
        return NoFallback(WhyNone.STREAM_BEGAN)
    hides_nothing = failure.executed is Executed.NO or idempotent
    stale_s = configured.stale_if_error_s
    if hides_nothing and stale_s is not None and expired_for_s is not None and expired_for_s <= stale_s:
        return Fallback(Source.STALE_CACHE)
    if configured.next_tier and tier_allowed:
        return Fallback(Source.NEXT_TIER)
    if hides_nothing:
        return Fallback(Source.STATIC) if configured.static is not None else NoFallback(WhyNone.NOTHING)
    return NoFallback(WhyNone.MAY_HAVE_HAPPENED)
