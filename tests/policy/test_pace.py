"""How the usual pace of a lane is learned, and when it is not (BREAK-1)."""

import pytest

from reach.policy.pace import EPOCH_S, MINIMUM_CALLS, Pace


def epoch(pace: Pace, now: float, ms: float, *, calls: int = MINIMUM_CALLS, suspect: bool = False) -> bool:
    for _ in range(calls):
        pace.sketch.add(ms)
    return pace.learn(now, suspect=suspect)


def test_the_first_hundred_calls_give_a_first_figure() -> None:
    """BREAK-1: a hundred good calls are enough to know a usual P99 and median."""
    pace = Pace()
    assert (None, MINIMUM_CALLS) == (pace.p99_ms, pace.due)
    assert epoch(pace, 0.0, 10.0)
    assert (10.0, 10.0) == (pytest.approx(pace.p99_ms, rel=0.06), pytest.approx(pace.median_ms, rel=0.06))


def test_an_epoch_lasts_a_minute() -> None:
    """A busy lane learns once a minute, not every hundred calls; it asks again after a hundred more."""
    pace = Pace()
    epoch(pace, 0.0, 10.0)
    assert not epoch(pace, EPOCH_S - 1, 20.0)
    assert 2 * MINIMUM_CALLS == pace.due
    assert epoch(pace, EPOCH_S, 20.0)


def test_a_settled_pace_moves_by_a_tenth() -> None:
    """A step in latency becomes the usual pace slowly: a tenth of the difference a minute."""
    pace = Pace()
    for minute in range(20):
        epoch(pace, minute * EPOCH_S, 100.0)
    before = pace.p99_ms
    assert before is not None
    epoch(pace, 20 * EPOCH_S, 200.0)
    assert before * 1.1 == pytest.approx(pace.p99_ms, rel=0.02)


def test_a_suspect_lane_teaches_nothing() -> None:
    """BREAK-1: the usual P99 is frozen while a lane is suspect, and what was gathered then is thrown away."""
    pace = Pace()
    epoch(pace, 0.0, 10.0)
    before = (pace.p99_ms, pace.median_ms)
    assert not epoch(pace, EPOCH_S, 500.0, suspect=True)
    assert before == (pace.p99_ms, pace.median_ms)
    assert (0, MINIMUM_CALLS) == (pace.sketch.count, pace.due)


def test_a_new_pace_can_be_accepted() -> None:
    """What a lane is found to be like now is its usual pace at once, and moves soon."""
    pace = Pace()
    for minute in range(20):
        epoch(pace, minute * EPOCH_S, 100.0)
    pace.accept(900.0)
    assert (900.0, 900.0) == (pace.p99_ms, pace.median_ms)
    epoch(pace, 30 * EPOCH_S, 500.0)
    assert 700.0 == pytest.approx(pace.p99_ms, rel=0.05)
