"""Weights: each term's value, each can be turned off, and no usable lane starves."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.policy.weight import LaneFacts, Term, quality, shares, weigh


def factor(term: Term, facts: LaneFacts, *, cheapest: float | None = None) -> float:
    return weigh(facts, cheapest=cheapest).as_map()[term]


@pytest.mark.parametrize(
    ("success", "expected"),
    [(None, 1.0), (1.0, 1.0), (0.99, 1.0), (0.9899, 0.7), (0.95, 0.7), (0.9499, 0.3), (0.0, 0.3)],
)
def test_health_has_three_steps(success: float | None, expected: float) -> None:
    """ROUTE-2: health is 1.0, 0.7 or 0.3 at a success of 99 %, 95 % or below; 1.0 before there were calls."""
    assert expected == factor(Term.HEALTH, LaneFacts(success=success))


@pytest.mark.parametrize(
    ("term", "facts", "cheapest", "expected"),
    [
        (Term.TRAFFIC, LaneFacts(traffic_weight=3.0), None, 3.0),
        (Term.MATCH, LaneFacts(tag_weight=2.0), None, 2.0),
        (Term.MATCH, LaneFacts(tag_weight=2.0, inherited=True), None, 1.2),
        (Term.COST, LaneFacts(cost=0.01), None, 0.5),
        (Term.COST, LaneFacts(cost=0.0), None, 1.0),
        (Term.COST, LaneFacts(cost_weight=4.0), 2.0, 0.5),
        (Term.COST, LaneFacts(cost_weight=2.0, cost=0.01), 2.0, 0.5),
        (Term.CAPACITY, LaneFacts(p99_ms=1000.0), None, 0.5),
        (Term.CAPACITY, LaneFacts(p99_ms=0.0), None, 1.0),
        (Term.QUALITY, LaneFacts(quality=1.3), None, 1.3),
    ],
)
def test_a_term_has_its_value(term: Term, facts: LaneFacts, cheapest: float | None, expected: float) -> None:
    """ROUTE-2: traffic, match, cost, capacity and quality are what the rule says."""
    assert pytest.approx(expected) == factor(term, facts, cheapest=cheapest)


def test_a_lane_of_which_nothing_is_known_weighs_one() -> None:
    """A new lane is as good as any: what is not known is 1."""
    assert 1.0 == weigh(LaneFacts()).value


@pytest.mark.parametrize("term", list(Term))
def test_each_term_can_be_turned_off(term: Term) -> None:
    """ROUTE-2: a term that is turned off is 1, and says so; the others are as they were."""
    facts = LaneFacts(
        traffic_weight=2.0, tag_weight=3.0, success=0.5, cost=0.02, p99_ms=500.0, quality=0.8, inherited=True
    )
    on, off = weigh(facts), weigh(facts, off={term})
    assert on.as_map() | {term.value: 1.0} == off.as_map()
    assert pytest.approx(on.value / on.as_map()[term]) == off.value
    assert "turned off" in off.explain()[list(Term).index(term)]


def test_a_weight_explains_itself() -> None:
    """ROUTE-2: every term is printed with its value and why, and the product at the end."""
    lines = weigh(LaneFacts(success=0.97, cost=0.01, p99_ms=1000.0, inherited=True)).explain()
    assert [*(term.value for term in Term), "weight"] == [line.split()[0] for line in lines]
    assert "97.00% of 5 min succeeded" in lines[2]
    assert "weight   = 0.1050" == lines[-1]


@pytest.mark.parametrize(
    ("facts", "cheapest", "told"),
    [
        (LaneFacts(traffic_weight=-1.0), None, "traffic_weight is a finite number of 0 or more, not -1.0"),
        (LaneFacts(p99_ms=math.nan), None, "p99_ms"),
        (LaneFacts(success=1.01), None, "a share from 0 to 1, not 1.01"),
        (LaneFacts(cost_weight=0.0), None, "above 0"),
        (LaneFacts(cost_weight=1.0), 0.0, "cheapest"),
    ],
)
def test_a_fact_out_of_range_is_refused(facts: LaneFacts, cheapest: float | None, told: str) -> None:
    """A wrong figure is named, with what would be right."""
    with pytest.raises(ValueError, match=told):
        weigh(facts, cheapest=cheapest)


def test_quality_moves_slowly() -> None:
    """ROUTE-2: quality moves at most 5 % an hour, towards half of one plus the success of 24 hours."""
    assert pytest.approx(0.95) == quality(1.0, success_24h=0.0, elapsed_s=3600)
    assert pytest.approx(1.025) == quality(1.0, success_24h=1.0, elapsed_s=1800)
    assert pytest.approx(1.01) == quality(1.0, success_24h=0.51, elapsed_s=3600)
    assert 1.2 == quality(1.2, success_24h=None, elapsed_s=3600)


@settings(max_examples=100)
@given(st.floats(0.5, 1.5), st.floats(0, 1), st.floats(0, 1e7))
def test_quality_stays_in_its_bounds(previous: float, success: float, elapsed_s: float) -> None:
    """ROUTE-2: whatever happens, quality lies in 0.5 to 1.5 and never passes what is deserved."""
    moved = quality(previous, success_24h=success, elapsed_s=elapsed_s)
    deserved = 0.5 + success
    low, high = min(previous, deserved), max(previous, deserved)
    assert low - 1e-9 <= moved <= high + 1e-9


@pytest.mark.parametrize(
    ("previous", "success", "elapsed_s"), [(0.4, 0.5, 1.0), (1.0, 1.1, 1.0), (1.0, 0.5, -1.0)]
)
def test_quality_refuses_what_cannot_be(previous: float, success: float, elapsed_s: float) -> None:
    """A quality, success or time out of range is a mistake that is told."""
    with pytest.raises(ValueError, match=r"quality|success_24h"):
        quality(previous, success_24h=success, elapsed_s=elapsed_s)


def test_shares_follow_the_weights() -> None:
    """Weights far above the floor are shared as they are."""
    assert {"a": 0.75, "b": 0.25, "c": 0.0} == shares({"a": 3.0, "b": 1.0, "c": 0.0})


def test_a_lane_under_the_floor_is_lifted() -> None:
    """ROUTE-3: a usable lane keeps 1 % of its tier's traffic, the others share the rest by weight."""
    found = shares({"best": 2.0, "good": 1.0, "poor": 0.0001})
    assert pytest.approx({"best": 0.66, "good": 0.33, "poor": 0.01}) == found


@settings(max_examples=100)
@given(st.dictionaries(st.text(max_size=4), st.floats(0, 1e300), max_size=150))
def test_shares_are_shares(weights: dict[str, float]) -> None:
    """ROUTE-3: shares add up to 1, none of a positive weight is under the floor, and order is kept."""
    found = shares(weights)
    positive = [lane for lane, weight in weights.items() if weight > 0]
    assert weights.keys() == found.keys()
    assert pytest.approx(1.0 if positive else 0.0) == sum(found.values())
    floor = min(0.01, 1 / max(1, len(positive)))
    assert [] == [lane for lane in positive if found[lane] < floor * (1 - 1e-9)]
    assert 0.0 == sum(share for lane, share in found.items() if weights[lane] == 0)
    ordered = sorted(positive, key=lambda lane: weights[lane])
    assert all(found[a] <= found[b] * (1 + 1e-9) for a, b in pairwise(ordered))


@pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf])
def test_shares_of_no_weight_are_refused(weight: float) -> None:
    """A weight that is none is told with its lane."""
    with pytest.raises(ValueError, match="the weight of b"):
        shares({"a": 1.0, "b": weight})
