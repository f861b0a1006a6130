"""What digests do to the breaker that all callers share."""

import pytest

from actors.supervisor.verdicts import Verdicts
from reach.policy.sketch import Sketch
from reach.wire.outcomes import LaneOutcomes

LANE = ("best", "job.do")


def fed(*digests: tuple[int, int, int]) -> Verdicts:
    """Feed digests of a second each: (ok, failed, failed in a row at its end)."""
    verdicts = Verdicts(lambda: 0.5)
    for at, (ok, failed, in_a_row) in enumerate(digests):
        latencies = Sketch()
        for _ in range(ok):
            latencies.add(5.0)
        told = LaneOutcomes(
            provider="best", capability="job.do", ok=ok, failed=failed, failed_in_a_row=in_a_row
        )
        verdicts.feed(told, latencies, span_s=1.0, now=100.0 + at)
    return verdicts


@pytest.mark.parametrize(("ok", "failed"), [(285, 15), (80, 20), (990, 10), (75, 25)])
def test_a_lane_that_fails_now_and_then_stays_closed(ok: int, failed: int) -> None:
    """BREAK-1: under 30 % of failures in each of thirty seconds open nothing, however many they are."""
    verdicts = fed(*[(ok, failed, 0)] * 30)
    assert "closed" == verdicts.breaker(LANE).state


@pytest.mark.parametrize(("ok", "failed", "in_a_row"), [(0, 10, 10), (100, 10, 10), (40, 60, 0), (60, 40, 1)])
def test_a_lane_that_fails_opens(ok: int, failed: int, in_a_row: int) -> None:
    """BREAK-1: ten in a row at the end of a digest, or more than 30 %."""
    verdicts = fed((ok, failed, in_a_row))
    assert "open" == verdicts.breaker(LANE).state


def test_failures_in_a_row_go_on_over_digests() -> None:
    """Ten in a row are ten, also where two digests tell of five each."""
    assert "closed" == fed((100, 5, 5)).breaker(LANE).state
    assert "open" == fed((100, 5, 5), (0, 5, 10)).breaker(LANE).state
