"""Canary: the part of the calls that was asked for, the callers that were named, the instances that belong."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.policy.canary import Split, belongs, factors
from reach.policy.tickets import tickets
from reach.wire.route import Canary


@pytest.mark.parametrize(
    ("canary", "expected"),
    [
        (Canary(version="2.4.0"), True),
        (Canary(version="2.3.1"), False),
        (Canary(labels={"pool": "blue"}), True),
        (Canary(labels={"pool": "blue", "rack": "7"}), False),
        (Canary(version="2.4.0", labels={"pool": "blue"}), True),
        (Canary(version="2.4.0", labels={"pool": "red"}), False),
        (Canary(percent=50.0), False),
    ],
)
def test_an_instance_belongs_by_version_and_labels(canary: Canary, expected: bool) -> None:
    """ROUTE-6: a group is a version, a label group, or both at once; a canary of neither has nobody."""
    assert expected is belongs(canary, version="2.4.0", labels={"pool": "blue", "zone": "a"})


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 100), st.floats(0, 1, exclude_max=True))
def test_the_part_is_exact_to_a_tenth_of_a_point(percent: float, start: float) -> None:
    """ROUTE-6: over 10 000 calls the canary gets its part to ±0.1 point (±1 is promised), wherever a caller starts."""
    split = Split(Canary(version="2", percent=percent), caller="c1", start=start)
    taken = sum(split.takes() for _ in range(10_000))
    assert pytest.approx(percent * 100, abs=10) == taken


def test_many_callers_together_are_exact_too() -> None:
    """ROUTE-6: 200 callers with 50 calls each, started evenly apart, give 5 % to the canary within a point."""
    splits = [
        Split(Canary(version="2", percent=5.0), caller=None, start=number / 200) for number in range(200)
    ]
    taken = sum(split.takes() for split in splits for _ in range(50))
    assert pytest.approx(500, abs=100) == taken


def test_named_callers_always_go_there() -> None:
    """ROUTE-6: a named caller goes to the canary with each call, the others by the part alone."""
    canary = Canary(version="2", percent=0.0, callers=("finance-checker",))
    named, other = (Split(canary, caller=caller, start=0.5) for caller in ("finance-checker", "c2"))
    assert (100, 0) == (sum(named.takes() for _ in range(100)), sum(other.takes() for _ in range(100)))


def test_a_canary_changes_at_run_time() -> None:
    """ROUTE-6: from the next call on the new part holds, and none when the canary ends."""
    split = Split(None, caller="c1", start=0.3)
    taken = [sum(split.takes() for _ in range(1_000))]
    for canary in (Canary(version="2", percent=100.0), Canary(version="2", percent=20.0), None):
        split.change(canary)
        assert canary is split.canary
        taken.append(sum(split.takes() for _ in range(1_000)))
    assert pytest.approx([0, 1000, 200, 0], abs=5) == taken


def test_the_group_has_its_part_of_the_weights() -> None:
    """ROUTE-6: for plain NATS clients 5 % is in the tickets, whatever the number of instances on either side."""
    usual = {"a": 1.0, "b": 1.0, "new": 1.0}
    found = factors(Canary(version="2", percent=5.0), usual, group={"new", "elsewhere"})
    assert pytest.approx({"a": 0.475, "b": 0.475, "new": 0.05}) == found
    assert {"a": 19, "b": 19, "new": 2} == tickets(found).counts


def test_proportions_inside_each_side_are_kept() -> None:
    """A warming instance stays at a fifth of its neighbours, inside the group and outside."""
    usual = {"a": 1.0, "warm": 0.2, "new": 1.0, "new-warm": 0.2}
    found = factors(Canary(version="2", percent=40.0), usual, group={"new", "new-warm"})
    assert pytest.approx({"a": 0.5, "warm": 0.1, "new": 1 / 3, "new-warm": 1 / 15}) == found


@pytest.mark.parametrize(
    ("usual", "group"),
    [
        ({"a": 1.0, "b": 0.5}, set()),
        ({"a": 1.0, "b": 0.5}, {"a", "b"}),
        ({"a": 1.0, "new": 0.0}, {"new"}),
        ({"a": 0.0, "new": 1.0}, {"new"}),
        ({"a": 0.0}, {"a"}),
        ({}, {"a"}),
    ],
)
def test_a_side_without_anybody_leaves_all_to_the_other(usual: dict[str, float], group: set[str]) -> None:
    """A canary that is not there yet takes no calls away; one that is left alone serves all."""
    assert usual == factors(Canary(version="2", percent=5.0), usual, group=group)


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    """A negative or endless weight is told with its instance."""
    with pytest.raises(ValueError, match="the weight of a is a finite number"):
        factors(Canary(version="2"), {"a": weight}, group=set())
