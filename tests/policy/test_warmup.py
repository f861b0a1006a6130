"""Warm-up: a part of the share at first, relative to the neighbours."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.policy.warmup import WARM_UP, Ramp, begins, factors, next_change_s


@pytest.mark.parametrize(
    ("age_s", "expected"),
    [(-1.0, 0.2), (0.0, 0.2), (59.9, 0.2), (60.0, 0.5), (119.9, 0.5), (120.0, 1.0), (math.inf, 1.0)],
)
def test_the_steps_of_a_warm_up(age_s: float, expected: float) -> None:
    """LIFE-3: 0.2 for 60 s, 0.5 to 120 s, then full."""
    assert expected == WARM_UP.factor(age_s)


@pytest.mark.parametrize(
    ("factor", "expected"), [(0.1, 0.0), (0.2, 0.0), (0.4, 0.0), (0.5, 60.0), (0.9, 60.0), (1.0, 120.0)]
)
def test_a_step_tells_when_it_begins(factor: float, expected: float) -> None:
    """Whoever takes a warm-up over knows only the factor: the age is that of its step's beginning."""
    assert expected == WARM_UP.age_s(factor)


@pytest.mark.parametrize(
    ("misses", "registered", "expected"),
    [(0, True, True), (1, False, False), (2, False, True), (0, False, False)],
)
def test_who_warms_up(misses: int, registered: bool, expected: bool) -> None:
    """LIFE-3: a start does, and a return after two misses or more; one late heartbeat does not."""
    assert expected is begins(misses=misses, registered=registered)


def test_a_newcomer_beside_warm_ones() -> None:
    """LIFE-3: one at 0.2 beside two with all of their share."""
    assert {"a": 1.0, "b": 1.0, "new": 0.2} == factors({"a": None, "b": 0.0, "new": 490.0}, now=500.0)


def test_the_only_instance_does_not_warm_up() -> None:
    """LIFE-3: off when it would be the only instance."""
    assert {"a": 1.0} == factors({"a": 100.0}, now=100.0)


def test_those_that_start_together_share_evenly() -> None:
    """A lane that starts as a whole has no instance to spare the others: each has its full part."""
    assert {"a": 1.0, "b": 1.0, "c": 1.0} == factors({"a": 0.0, "b": 0.5, "c": 3.0}, now=10.0)


def test_a_minute_ahead_is_ahead() -> None:
    """Among warming ones the older has more, in the proportion of their steps."""
    assert pytest.approx({"a": 1.0, "b": 0.4}) == factors({"a": 0.0, "b": 50.0}, now=70.0)


def test_the_next_change_is_told() -> None:
    """Whoever keeps the tickets knows when to look again; infinity says never by itself."""
    assert 10.0 == next_change_s({"a": 0.0, "b": 100.0, "c": None}, now=110.0)
    assert math.inf == next_change_s({"a": 0.0, "c": None}, now=500.0)
    assert math.inf == next_change_s({}, now=0.0)


@given(st.floats(0, 300))
def test_a_factor_holds_until_its_next_step(age_s: float) -> None:
    """Just before the next step the factor is the same, and after it it is higher."""
    step = WARM_UP.next_step_s(age_s)
    if math.isinf(step):
        assert 1.0 == WARM_UP.factor(age_s)
    else:
        assert WARM_UP.factor(age_s) == WARM_UP.factor(age_s + step * 0.999)
        assert WARM_UP.factor(age_s) < WARM_UP.factor(age_s + step * 1.001 + 1e-9)


@pytest.mark.parametrize(
    "steps",
    [((60.0, 0.5), (30.0, 0.6)), ((60.0, 0.5), (90.0, 0.2)), ((60.0, 1.5),), ((0.0, 0.2),), ((9.0, 0.0),)],
)
def test_steps_that_do_not_rise_are_refused(steps: tuple[tuple[float, float], ...]) -> None:
    """A ramp that falls, passes 1 or begins with nothing is a mistake in the settings."""
    with pytest.raises(ValueError, match=r"steps rise|never warms up"):
        Ramp(steps)


def test_a_ramp_may_be_none() -> None:
    """Without steps everything is given at once."""
    assert (1.0, math.inf, 0.0) == (Ramp(()).factor(0.0), Ramp(()).next_step_s(0.0), Ramp(()).length_s)
