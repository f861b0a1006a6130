"""Tickets: the smallest whole numbers that express the weights, and what rounding costs."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.policy.tickets import MOST, Tickets, spread, tickets


def counts(*weights: float) -> list[int]:
    return list(tickets({f"i{number}": weight for number, weight in enumerate(weights)}).counts.values())


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([1, 1, 1], [1, 1, 1]),
        ([0.7, 0.7], [1, 1]),
        ([1, 1, 0.2], [5, 5, 1]),
        ([1, 0.5], [2, 1]),
        ([1, 1, 0.3], [10, 10, 3]),
        ([0.475, 0.475, 0.05], [19, 19, 2]),
        ([0.95, 0.05], [19, 1]),
        ([1, 0], [1, 0]),
        ([0.001], [1]),
        ([0, 0], [0, 0]),
        ([], []),
    ],
)
def test_the_smallest_numbers_that_express_the_weights(weights: list[float], expected: list[int]) -> None:
    """Design, section 5: all healthy is one each, a warm-up at 0.2 beside two healthy is 5 : 5 : 1."""
    assert expected == counts(*weights)


def test_the_rounding_error_is_told() -> None:
    """Where 64 tickets cannot express a weight, the difference is told in points, and at whom."""
    found = tickets({"old": 0.99, "new": 0.01})
    assert {"old": 64, "new": 1} == found.counts
    assert pytest.approx((1 / 65 - 0.01) * 100) == found.error_points
    assert "65 tickets (1 with 64, 1 with 1); rounding is off by 0.54 points" in found.explain()
    assert found.worst in {"old", "new"}


def test_no_weight_needs_no_tickets() -> None:
    """Nobody with a weight: nobody is off, and the sentence says why there are none."""
    assert Tickets({"a": 0}, 0.0, None) == tickets({"a": 0.0})
    assert "no tickets: nobody has a weight" == tickets({}).explain()


WEIGHTS = st.dictionaries(st.text(max_size=3), st.just(0.0) | st.floats(1e-6, 1e6), min_size=1, max_size=12)


@settings(max_examples=100)
@given(WEIGHTS, st.integers(1, MOST))
def test_tickets_are_within_bounds_and_in_order(weights: dict[str, float], most: int) -> None:
    """A positive weight has 1 to `most` tickets, 0 has none, and a heavier instance never has fewer."""
    found = tickets(weights, most=most).counts
    assert weights.keys() == found.keys()
    assert [] == [
        one for one, weight in weights.items() if not (weight > 0) <= found[one] <= most * (weight > 0)
    ]
    assert all(found[a] <= found[b] for a, b in product(weights, weights) if weights[a] <= weights[b])


@settings(max_examples=50)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_whole_proportions_are_met_exactly(proportions: list[int]) -> None:
    """Weights in small whole proportions come out as these, in lowest terms."""
    weights = {f"i{number}": float(part) for number, part in enumerate(proportions)}
    found = tickets(weights, tolerance=1e-9)
    smallest = math.gcd(*proportions)
    assert [part // smallest for part in proportions] == list(found.counts.values())
    assert found.error_points == pytest.approx(0.0)


@settings(max_examples=50)
@given(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=8))
def test_shares_are_within_a_point_and_a_half(weights: list[float]) -> None:
    """Weights no lighter than a twentieth of the heaviest are expressed to 1.5 points, by what is told itself."""
    found = tickets({f"i{number}": weight for number, weight in enumerate(weights)})
    off = [
        abs(count / found.total - weight / sum(weights)) * 100
        for count, weight in zip(found.counts.values(), weights, strict=True)
    ]
    assert pytest.approx(max(off)) == found.error_points
    assert found.error_points < 1.5


def test_ten_thousand_instances_have_small_tickets() -> None:
    """SPEED-4: a large lane with one instance in warm-up still has single digits of tickets each."""
    weights = {f"i{number}": 1.0 for number in range(9_999)} | {"warm": 0.2}
    assert {5: 9_999, 1: 1} == Counter(tickets(weights).counts.values())


def test_ten_thousand_different_weights_are_expressed() -> None:
    """Where not every weight can be looked at for the scale, all are still rounded, and the error is theirs."""
    weights = {f"i{number}": 0.1 + 0.9 * number / 10_000 for number in range(10_000)}
    found = tickets(weights)
    total = sum(weights.values())
    off = max(abs(found.counts[one] / found.total - weight / total) * 100 for one, weight in weights.items())
    assert pytest.approx(off) == found.error_points
    assert found.error_points < 0.001


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    """A negative or endless weight is told with its instance."""
    with pytest.raises(ValueError, match="the weight of a is a finite number"):
        tickets({"a": weight})


def test_holding_no_ticket_at_all_cannot_be_asked() -> None:
    """`most` below one would withdraw everybody: refused."""
    with pytest.raises(ValueError, match="may hold 1 ticket or more, not 0"):
        tickets({"a": 1.0}, most=0)


def test_a_lane_keeps_its_share_whatever_its_instances_do() -> None:
    """One warming instance changes the division inside its lane and not the lane's share."""
    found = spread({"p": 0.6, "q": 0.4}, {"p": {"p1": 1.0, "p2": 0.2}, "q": {"q1": 1.0}})
    assert pytest.approx({"p1": 0.5, "p2": 0.1, "q1": 0.4}) == found


def test_a_lane_without_usable_instances_leaves_its_share() -> None:
    """Its instances weigh 0, so that the others' tickets are all there are."""
    found = spread({"p": 0.6, "q": 0.4, "r": 0.0}, {"p": {"p1": 0.0}, "q": {"q1": 1.0, "q2": 1.0}})
    assert {"p1": 0, "q1": 1, "q2": 1} == tickets(found).counts


def test_an_instance_in_two_lanes_is_refused() -> None:
    """An instance belongs to one provider; a table that says otherwise is wrong."""
    with pytest.raises(ValueError, match="x is listed in two lanes"):
        spread({"p": 0.5, "q": 0.5}, {"p": {"x": 1.0}, "q": {"x": 1.0}})
