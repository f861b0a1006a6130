"""The window of the last minute, against a list of all calls ever made (BREAK-1)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.policy.window import Totals, Window

Call = tuple[int, bool, bool]


def totals(window: Window) -> Totals:
    return Totals(window.calls, window.failures, window.slow)


def naive(calls: list[Call], newest: int, buckets: int) -> Totals:
    """Count from the whole history what lies in the `buckets` seconds up to `newest`."""
    seen = [call for call in calls if newest - buckets < call[0] <= newest]
    return Totals(
        len(seen), sum(failed for _, failed, _ in seen), sum(slow and not failed for _, failed, slow in seen)
    )


def test_a_call_counts_for_a_minute() -> None:
    """BREAK-1: what was recorded counts while its second is one of the last sixty, and then no more."""
    window = Window()
    window.record(100.5, failed=True, slow=False)
    window.record(130.0, failed=False, slow=True)
    window.roll(159.9)
    assert Totals(2, 1, 1) == totals(window)
    window.roll(160.0)
    assert Totals(1, 0, 1) == totals(window)
    window.roll(190.0)
    assert Totals() == totals(window)


def test_a_failed_call_is_not_slow_too() -> None:
    """BREAK-1: every call is counted under one heading at most."""
    window = Window()
    window.record(1.0, failed=True, slow=True)
    assert Totals(1, 1, 0) == totals(window)


def test_the_last_seconds_alone() -> None:
    """BREAK-1: the fast window sees the newest five seconds, the current one included."""
    window = Window()
    for second in range(10):
        window.record(float(second), failed=second >= 6, slow=False)
    assert Totals(5, 4, 0) == window.recent(9.5, 5.0)
    assert Totals(3, 2 + 1, 0) == window.recent(11.0, 5.0)


def test_a_long_silence_forgets_everything_at_once() -> None:
    """A window that was not looked at for an hour is empty, and as small as a new one."""
    window = Window()
    for second in range(90):
        window.record(float(second), failed=False, slow=False)
    window.roll(3_600.0)
    assert (Totals(), None) == (totals(window), window._ring)


def test_a_window_that_ran_empty_gives_its_ring_back() -> None:
    """A lane without traffic keeps no buckets, also when it is looked at every second."""
    window = Window()
    window.record(0.0, failed=False, slow=False)
    for second in range(1, 61):
        window.roll(float(second))
    assert (Totals(), None) == (totals(window), window._ring)


def test_a_clock_that_goes_back_counts_into_the_newest_second() -> None:
    """A clock that goes back a little neither loses calls nor counts any twice."""
    window = Window()
    window.record(100.0, failed=False, slow=False)
    window.record(97.0, failed=True, slow=False)
    window.roll(159.5)
    assert Totals(2, 1, 0) == totals(window)
    window.roll(160.0)
    assert Totals() == totals(window)


@pytest.mark.parametrize(("span_s", "bucket_s"), [(60, 0), (60, -1), (1, 2), (float("inf"), 1)])
def test_a_window_has_sensible_buckets(span_s: float, bucket_s: float) -> None:
    """Buckets longer than the window, or of no length, are refused."""
    with pytest.raises(ValueError, match="bucket_s"):
        Window(span_s=span_s, bucket_s=bucket_s)


def test_rounding_at_the_end_of_a_bucket_loses_no_call() -> None:
    """The end of a bucket that floats put into the bucket itself is no reason to count anew."""
    bucket_s = 0.1
    tick = next(n for n in range(1, 100_000) if (n * bucket_s) // bucket_s < n)
    window = Window(span_s=3.0, bucket_s=bucket_s)
    for now in ((tick - 1) * bucket_s, tick * bucket_s, tick * bucket_s, (tick + 2) * bucket_s):
        window.record(now, failed=False, slow=False)
    assert (4, 4) == (window.calls, window.recent((tick + 2) * bucket_s, 3.0).calls)


STEPS = st.lists(
    st.tuples(
        # Mostly small steps, some back; now and then past the whole window.
        st.one_of(st.floats(-2, 3), st.floats(0, 200), st.just(0.0), st.just(1.0)),
        st.sampled_from(["record", "record", "record", "roll", "clear"]),
        st.booleans(),
        st.booleans(),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(
    st.floats(0, 1e6), st.sampled_from([(60.0, 1.0), (10.0, 1.0), (5.0, 0.5), (3.0, 0.1), (1.0, 1.0)]), STEPS
)
def test_it_agrees_with_a_list_of_all_calls(
    start: float, shape: tuple[float, float], steps: list[tuple[float, str, bool, bool]]
) -> None:
    """BREAK-1: after any history, sums and recent sums are those of a naive model, and none is negative."""
    span_s, bucket_s = shape
    window = Window(span_s=span_s, bucket_s=bucket_s)
    now, newest, calls = start, 0, []
    for step, what, failed, slow in steps:
        now = max(0.0, now + step)
        newest = max(newest, int(now // bucket_s))
        if what == "record":
            window.record(now, failed=failed, slow=slow)
            calls.append((newest, failed, slow))
        elif what == "roll":
            window.roll(now)
        else:
            window.roll(now)
            window.clear()
            calls = []
        assert naive(calls, newest, round(span_s / bucket_s)) == totals(window)
        assert naive(calls, newest, round(min(3.0, span_s) / bucket_s)) == window.recent(
            now, min(3.0, span_s)
        )
