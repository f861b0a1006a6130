"""When a second request is sent beside a slow first (RETRY-8)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.policy.hedge import LEAST_AFTER_S, Hedge, NoHedge, WhyNot, due, plan
from reach.policy.retry import LEAST_ATTEMPT_S

GOOD: dict[str, Any] = {
    "enabled": True,
    "idempotent": True,
    "keyed": False,
    "streaming": False,
    "attempts": 1,
    "elsewhere": True,
    "p95_ms": 200.0,
    "left_s": 10.0,
}


def test_after_the_p95_of_the_lane() -> None:
    """RETRY-8: the second request follows when the first took longer than 95 % of the lane's calls do."""
    assert Hedge(0.2) == plan(**GOOD)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"enabled": False}, WhyNot.OFF),
        ({"idempotent": False}, WhyNot.NOT_IDEMPOTENT),
        ({"keyed": True}, WhyNot.KEYED),
        ({"idempotent": False, "keyed": True}, WhyNot.NOT_IDEMPOTENT),
        ({"streaming": True}, WhyNot.STREAM),
        ({"attempts": 2}, WhyNot.ONCE),
        ({"elsewhere": False}, WhyNot.ALONE),
        ({"p95_ms": None}, WhyNot.UNMEASURED),
        ({"left_s": 0.21}, WhyNot.TIME),
    ],
)
def test_what_stands_against_it(facts: dict[str, Any], why: WhyNot) -> None:
    """RETRY-8: idempotent only, never with a key, once, elsewhere, and only where it can still help."""
    assert NoHedge(why) == plan(**(GOOD | facts))


def test_a_fast_lane_is_not_asked_twice_at_once() -> None:
    """RETRY-8: where the P95 is next to nothing, the second request still waits for a moment."""
    assert Hedge(LEAST_AFTER_S) == plan(**(GOOD | {"p95_ms": 0.3}))


def test_the_budget_is_asked_when_the_moment_has_come() -> None:
    """RETRY-6, RETRY-8: a second request is an extra call like any retry, and so is the time looked at anew."""
    planned = Hedge(0.2)
    assert planned == due(planned, left_s=5.0, budget_ok=True)
    assert NoHedge(WhyNot.BUDGET) == due(planned, left_s=5.0, budget_ok=False)
    assert NoHedge(WhyNot.TIME) == due(planned, left_s=0.01, budget_ok=True)


@given(
    facts=st.fixed_dictionaries(
        {
            "enabled": st.booleans(),
            "idempotent": st.booleans(),
            "keyed": st.booleans(),
            "streaming": st.booleans(),
            "attempts": st.integers(min_value=1, max_value=3),
            "elsewhere": st.booleans(),
            "p95_ms": st.none() | st.floats(min_value=0.0, max_value=60_000.0),
            "left_s": st.floats(min_value=-1.0, max_value=60.0),
        }
    )
)
def test_never_a_second_write(facts: dict[str, Any]) -> None:
    """RETRY-8: a hedge keeps every bound, whatever else is the case."""
    decision = plan(**facts)
    if isinstance(decision, Hedge):
        assert (True, True, False, False, 1) == tuple(
            facts[fact] for fact in ("enabled", "idempotent", "keyed", "streaming", "attempts")
        )
        assert LEAST_AFTER_S <= decision.after_s <= facts["left_s"] - LEAST_ATTEMPT_S + 1e-9
