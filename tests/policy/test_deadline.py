"""How much time a call and its attempts get (CALL-1, CALL-3)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.policy.deadline import attempt_share_s, card_timeout_s, narrow
from reach.wire.card import CapabilityCard

SECONDS = st.floats(min_value=0.0, max_value=86_400.0)
ASKED = st.floats(min_value=0.001, max_value=86_400.0)


@pytest.mark.parametrize(
    ("left_s", "may_retry", "expected"),
    [
        (10.0, True, 7.0),  # 70 %, so that another attempt is worth starting
        (10.0, False, 9.5),  # all but 5 %
        (0.2, False, 0.18),  # all but 20 ms
        (0.05, True, 0.03),  # the margin binds before the 70 % do
        (0.01, False, 0.005),  # never more margin than time
        (0.0, False, 0.0),
        (-3.0, True, 0.0),
        (math.inf, True, math.inf),
    ],
)
def test_share_table(left_s: float, may_retry: bool, expected: float) -> None:
    """CALL-3: at most 70 % while a timeout may be retried, else all less max(20 ms, 5 %)."""
    assert expected == pytest.approx(attempt_share_s(left_s, may_retry=may_retry))


@given(left_s=SECONDS, may_retry=st.booleans())
def test_share_stays_inside_what_is_left(left_s: float, may_retry: bool) -> None:
    """CALL-3: an attempt never gets all of the time, and gets some of it while there is some."""
    share_s = attempt_share_s(left_s, may_retry=may_retry)
    assert 0.0 <= share_s <= left_s
    assert left_s < 1e-9 or 0.0 < share_s < left_s


@given(left_s=SECONDS)
def test_share_is_smaller_while_another_may_follow(left_s: float) -> None:
    """CALL-3: keeping time for another attempt never gives this one more, and never more than 70 %."""
    with_next = attempt_share_s(left_s, may_retry=True)
    assert with_next <= attempt_share_s(left_s, may_retry=False)
    assert with_next <= 0.7 * left_s


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        (None, 15.0),
        (CapabilityCard(tag="invoice.extract"), 15.0),
        (CapabilityCard(tag="invoice.extract", timeout_s=5.0), 5.0),
        (CapabilityCard(tag="invoice.extract", timeout_hint_ms=2_000), 2.4),
        (CapabilityCard(tag="invoice.extract", timeout_s=5.0, timeout_hint_ms=2_000), 5.0),
    ],
)
def test_timeout_of_a_card(card: CapabilityCard | None, expected: float) -> None:
    """CALL-1: the card's timeout, else its hint × 1.2, else 15 s."""
    assert expected == pytest.approx(card_timeout_s(card))


@pytest.mark.parametrize(
    ("asked_s", "default_s", "surrounding_s", "expected"),
    [
        (None, 15.0, (), 15.0),
        (3.0, 15.0, (), 3.0),
        (60.0, 15.0, (), 60.0),  # the default is for who does not ask
        (60.0, 15.0, (30.0,), 30.0),  # … but nothing goes past what surrounds it
        (None, 15.0, (30.0, 4.0, None), 4.0),
        (3.0, 15.0, (math.inf,), 3.0),
        (3.0, 15.0, (-0.5,), 0.0),
    ],
)
def test_narrow_table(
    asked_s: float | None, default_s: float, surrounding_s: tuple[float | None, ...], expected: float
) -> None:
    """CALL-1: a caller may ask for less, never for more than what surrounds it."""
    assert expected == narrow(asked_s, default_s, *surrounding_s)


@given(asked_s=st.none() | ASKED, default_s=ASKED, surrounding_s=st.lists(st.none() | SECONDS, max_size=4))
def test_narrow_is_within_everything(
    asked_s: float | None, default_s: float, surrounding_s: list[float | None]
) -> None:
    """CALL-1: the result is one of the bounds, and no bound is below it."""
    bounds = [default_s if asked_s is None else asked_s, *(s for s in surrounding_s if s is not None)]
    assert min(bounds) == narrow(asked_s, default_s, *surrounding_s)


@pytest.mark.parametrize("asked_s", [0, -1.0, math.nan])
def test_a_timeout_is_positive(asked_s: float) -> None:
    """A timeout that is no time at all is a programming error, and says so."""
    with pytest.raises(ValueError, match="timeout_s is a positive number of seconds, not "):
        narrow(asked_s, 15.0)
