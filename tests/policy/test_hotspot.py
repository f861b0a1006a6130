"""Instances that have far more than their share of a hashed lane (ROUTE-10)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.policy.hotspot import LEAST_CALLS, TIMES, hottest

FIVE = dict.fromkeys("abcde", 1.0)


@pytest.mark.parametrize(
    ("calls", "weights", "expected"),
    [
        ({"a": 700, "b": 300}, FIVE, ("a", 3.5)),
        ({"a": 600, "b": 400}, FIVE, None),
        ({"a": 70, "b": 29}, FIVE, None),
        ({"a": 700, "b": 300}, {**FIVE, "a": 4.0}, None),
        ({"gone": 1000}, FIVE, None),
        ({"a": 1000}, {"a": 1.0}, None),
        ({"a": 1000}, {}, None),
    ],
)
def test_more_than_three_times_its_share_is_hot(
    calls: dict[str, int], weights: dict[str, float], expected: tuple[str, float] | None
) -> None:
    """ROUTE-10: by its weight, and not of a handful of calls."""
    assert expected == hottest(calls, weights, total=sum(calls.values()))


def test_calls_of_instances_that_are_not_told_count() -> None:
    """ROUTE-10: callers tell only of those that had most: ten of a thousand calls are no heat."""
    assert None is hottest({"a": 10}, FIVE, total=1000)


@given(
    calls=st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 10_000)),
    weights=st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0, 10)),
)
def test_what_is_hot_has_more_than_its_share(calls: dict[str, int], weights: dict[str, float]) -> None:
    """ROUTE-10: nobody is blamed who has not, whatever the others have."""
    found = hottest(calls, weights, total=sum(calls.values()))
    if found is not None:
        name, times = found
        total = sum(calls.values())
        assert total >= LEAST_CALLS
        assert times > TIMES
        assert calls[name] / total > TIMES * weights[name] / sum(weights.values()) * 0.999
