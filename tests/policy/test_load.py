"""When an instance has too much to do (behaviour LIFE-5)."""

import pytest

from reach.policy.load import LoadLimits, judge

LIMITS = LoadLimits(rss_bytes=1_000_000_000)


@pytest.mark.parametrize(
    ("cpu", "queue", "rss", "before", "busy"),
    [
        (0.80, 100, 1_000_000_000, False, None),
        (0.81, 0, 0, False, "cpu at 81%"),
        (0.61, 0, 0, True, "cpu at 61%"),
        (0.60, 50, 900_000_000, True, None),
        (0.0, 101, 0, False, "101 requests wait"),
        (0.0, 51, 0, True, "51 requests wait"),
        (0.0, 0, 1_000_000_001, False, "1000 MB of memory"),
        (0.0, 0, 900_000_001, True, "900 MB of memory"),
    ],
)
def test_over_a_limit_it_is_busy_until_it_is_well_below(
    cpu: float, queue: int, rss: int, before: bool, busy: str | None
) -> None:
    """LIFE-5: CPU over 80 %, queue over 100 or memory over its limit; well again below 60 %, 50, and 90 % of it."""
    assert busy == judge(cpu=cpu, queue=queue, rss_bytes=rss, was_busy=before, limits=LIMITS)


def test_a_measure_can_be_turned_off() -> None:
    """None as a limit means that this is not looked at."""
    off = LoadLimits(cpu=None, queue=None)
    assert None is judge(cpu=1.0, queue=10**6, rss_bytes=10**12, was_busy=False, limits=off)
