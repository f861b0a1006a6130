"""What takes the place of a failure, and what never does (BREAK-6)."""

import itertools
from typing import Any

import pytest

from reach.faults import FAULTS, Advice, Executed, Reason
from reach.policy.fallback import COVERED, Fallback, Fallbacks, NoFallback, Source, Static, WhyNone, fall_back
from reach.wire.reply import Failure

ALL = Fallbacks(stale_if_error_s=60.0, next_tier=True, static=Static(None))
THERE: dict[str, Any] = {
    "configured": ALL,
    "idempotent": True,
    "streaming_started": False,
    "expired_for_s": 5.0,
    "tier_allowed": True,
}
DOWN = Failure.of(Reason.NO_RESPONDERS)


def fell(failure: Failure = DOWN, **facts: Any) -> Fallback | NoFallback:
    return fall_back(failure, **(THERE | facts))


@pytest.mark.parametrize(
    ("stale", "tier", "static", "expected"),
    [
        (True, True, True, "fallback:stale_cache"),
        (True, True, False, "fallback:stale_cache"),
        (True, False, True, "fallback:stale_cache"),
        (True, False, False, "fallback:stale_cache"),
        (False, True, True, "fallback:next_tier"),
        (False, True, False, "fallback:next_tier"),
        (False, False, True, "fallback:static"),
        (False, False, False, "no_fallback:nothing"),
    ],
)
def test_the_order(stale: bool, tier: bool, static: bool, expected: str) -> None:
    """BREAK-6: stale cache, next tier, static value: the first that is configured and there."""
    configured = Fallbacks(
        stale_if_error_s=60.0 if stale else None,
        next_tier=tier,
        static=Static("closed today") if static else None,
    )
    assert expected == fell(configured=configured).word


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"expired_for_s": None}, Source.NEXT_TIER),
        ({"expired_for_s": 60.1}, Source.NEXT_TIER),
        ({"expired_for_s": 60.0}, Source.STALE_CACHE),
        ({"expired_for_s": -1.0}, Source.STALE_CACHE),
        ({"expired_for_s": None, "tier_allowed": False}, Source.STATIC),
    ],
)
def test_what_is_not_there_is_passed_over(facts: dict[str, Any], expected: Source) -> None:
    """BREAK-6: what is configured but missing, too old, or not allowed leaves the place to the next."""
    assert Fallback(expected) == fell(**facts)


@pytest.mark.parametrize("source", list(Source))
def test_it_is_always_degraded(source: Source) -> None:
    """BREAK-6: no fallback passes for the usual answer, and only the cache's is stale."""
    assert (True, source is Source.STALE_CACHE) == (Fallback(source).degraded, Fallback(source).stale)


def test_none_is_a_static_value() -> None:
    """BREAK-6: a value that was written down may be null."""
    assert Fallback(Source.STATIC) == fell(configured=Fallbacks(static=Static(None)))


@pytest.mark.parametrize("reason", sorted(set(Reason) - COVERED))
def test_what_the_caller_has_to_know_is_not_covered(reason: Reason) -> None:
    """BREAK-6: mistakes, permissions, limits and unknown outcomes of a caller's own are told as they are."""
    assert NoFallback(WhyNone.NOT_COVERED) == fell(Failure.of(reason))


def test_nothing_that_asks_for_other_parameters_is_covered() -> None:
    """BREAK-6: where the advice is to correct the parameters or to stop, a nice answer would hide it."""
    told = {Advice.FIX_PARAMS, Advice.GIVE_UP}
    assert set() == {row.reason for row in FAULTS.values() if row.advice in told} & COVERED


def test_a_write_that_may_have_happened_is_not_covered_by_a_value() -> None:
    """RETRY-2: neither a cached nor a static answer hides that something may have been done."""
    for reason, executed in itertools.product(sorted(COVERED), (Executed.MAYBE, Executed.YES)):
        failure = Failure.of(reason, executed=executed)
        assert NoFallback(WhyNone.MAY_HAVE_HAPPENED) == fell(failure, idempotent=False, tier_allowed=False)


def test_nothing_follows_a_stream_that_began() -> None:
    """RETRY-3: after the first part, another answer would be put behind half of this one."""
    assert NoFallback(WhyNone.STREAM_BEGAN) == fell(streaming_started=True)


def test_nothing_is_configured_by_itself() -> None:
    """BREAK-6: where nobody configured a fallback, there is none."""
    assert NoFallback(WhyNone.NOTHING) == fell(configured=Fallbacks())
