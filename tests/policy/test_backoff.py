"""The delay before an attempt is repeated: the formula, its spread, its cap."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.policy.backoff import delay_s

JITTER = st.floats(min_value=0, max_value=1, exclude_max=True)
SECONDS = st.floats(min_value=0, max_value=1e6)


@pytest.mark.parametrize(
    ("attempt", "jitter", "expected"),
    [
        (1, 0.5, 0.1),
        (2, 0.5, 0.2),
        (3, 0.5, 0.4),
        (1, 0.0, 0.05),
        (3, 0.0, 0.2),
        (1, 0.75, 0.125),
        (11, 0.5, 102.4),
    ],
)
def test_doubles_and_spreads(attempt: int, jitter: float, expected: float) -> None:
    """RETRY-4: the delay is base × 2^(n-1) × U(0.5, 1.5)."""
    assert pytest.approx(expected) == delay_s(attempt, base_s=0.1, jitter=jitter)


@given(st.integers(min_value=1, max_value=10**9), SECONDS, JITTER, SECONDS)
def test_never_outside_its_bounds(attempt: int, base_s: float, jitter: float, cap_s: float) -> None:
    """RETRY-4: for any attempt, base and chance the delay is between nothing and the cap."""
    assert 0 <= delay_s(attempt, base_s=base_s, jitter=jitter, cap_s=cap_s) <= cap_s


@given(st.integers(min_value=1, max_value=40), JITTER)
def test_spread_is_one_half_to_one_and_a_half(attempt: int, jitter: float) -> None:
    """RETRY-4: below the cap the delay stays within half and one and a half of its middle."""
    middle = 0.1 * 2 ** (attempt - 1)
    assert 0.5 * middle * 0.999999 <= delay_s(attempt, base_s=0.1, jitter=jitter) <= 1.5 * middle


@given(st.integers(min_value=1, max_value=10_000), JITTER, SECONDS)
def test_grows_with_each_attempt(attempt: int, jitter: float, cap_s: float) -> None:
    """With the same chance, a later attempt never waits less than an earlier one."""
    earlier = delay_s(attempt, base_s=0.1, jitter=jitter, cap_s=cap_s)
    assert earlier <= delay_s(attempt + 1, base_s=0.1, jitter=jitter, cap_s=cap_s)


def test_spread_survives_at_the_cap() -> None:
    """Those who failed together do not meet again at the cap."""
    delays = {round(delay_s(50, base_s=0.1, jitter=jitter / 10, cap_s=30), 9) for jitter in range(10)}
    assert (10, 10.0, 28.0) == (len(delays), min(delays), max(delays))


def test_no_base_means_no_delay() -> None:
    """A base of nothing stays nothing, however many attempts failed."""
    assert [0.0, 0.0] == [delay_s(n, base_s=0, jitter=0.9) for n in (1, 5_000_000_000)]


@pytest.mark.parametrize(
    ("attempt", "base_s", "jitter", "cap_s", "word"),
    [
        (0, 0.1, 0.5, 1, "attempt"),
        (1, 0.1, 1.0, 1, "jitter"),
        (1, 0.1, -0.1, 1, "jitter"),
        (1, -0.1, 0.5, 1, "negative"),
        (1, 0.1, 0.5, -1, "negative"),
        (1, math.nan, 0.5, 1, "negative"),
    ],
)
def test_refuses_nonsense_by_name(
    attempt: int, base_s: float, jitter: float, cap_s: float, word: str
) -> None:
    """An argument out of its range is refused, and the message names it."""
    with pytest.raises(ValueError, match=word):
        delay_s(attempt, base_s=base_s, jitter=jitter, cap_s=cap_s)
