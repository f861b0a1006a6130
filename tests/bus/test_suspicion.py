"""How long a call may be silent before it is in doubt."""

from types import SimpleNamespace
from typing import Any

import pytest

from reach.bus.suspicion import MOST_S, SUSPICION_S, Suspicions


def suspicions() -> Suspicions:
    connection: Any = SimpleNamespace()
    return Suspicions(connection)


@pytest.mark.parametrize(
    ("p99_ms", "wait_s"), [(None, 0.15), (5.0, 0.15), (50.0, 0.15), (100.0, 0.3), (300.0, 0.9), (5000.0, 1.0)]
)
def test_a_slow_capability_is_doubted_later(p99_ms: float | None, wait_s: float) -> None:
    """Design, section 4: max(150 ms, 3 × P99), and at most a second, so that LIFE-4 holds for slow ones too."""
    found = suspicions()
    found.learn("a.b", p99_ms)
    assert wait_s == pytest.approx(SUSPICION_S + found.patience.get("a.b", 0.0))
    assert wait_s <= MOST_S


def test_what_is_quick_again_is_doubted_early_again() -> None:
    """The newest figure counts; one that is not known any more leaves the least."""
    found = suspicions()
    found.learn("a.b", 300.0)
    found.learn("a.b", None)
    assert {} == found.patience
