"""Restart decisions: whom, after how long, and when it is enough."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.policy.restart import Backoff, GiveUp, Intensity, Restart, RestartBook, Strategy

CHILDREN = ("store", "index", "door")
RESTARTING = [Strategy.ONE_FOR_ONE, Strategy.ONE_FOR_ALL, Strategy.REST_FOR_ONE]


def book(strategy: Strategy, *, max_restarts: int = 3, within_s: float = 60.0) -> RestartBook:
    return RestartBook(CHILDREN, strategy=strategy, intensity=Intensity(max_restarts, within_s))


@pytest.mark.parametrize(
    ("strategy", "failed", "expected"),
    [
        (Strategy.ONE_FOR_ONE, "index", ("index",)),
        (Strategy.ONE_FOR_ALL, "index", ("store", "index", "door")),
        (Strategy.REST_FOR_ONE, "store", ("store", "index", "door")),
        (Strategy.REST_FOR_ONE, "index", ("index", "door")),
        (Strategy.REST_FOR_ONE, "door", ("door",)),
    ],
)
def test_a_strategy_says_who_is_restarted(strategy: Strategy, failed: str, expected: tuple[str, ...]) -> None:
    """Each strategy restarts its own part of the group, in start order."""
    assert Restart(delay_s=0.1, which=expected) == book(strategy).failed(failed, now=0, jitter=0.5)


def test_escalate_never_restarts() -> None:
    """Under *escalate* the first failure ends the group and says whose it was."""
    assert "store failed" in _reason(book(Strategy.ESCALATE).failed("store", now=0, jitter=0.5))


def test_delays_double_within_the_window() -> None:
    """LIFE-9: each restart of a window waits twice as long as the one before."""
    ours = book(Strategy.ONE_FOR_ONE)
    delays = [_delay(ours.failed("door", now=now, jitter=0.5)) for now in (0, 1, 2)]
    assert pytest.approx([0.1, 0.2, 0.4]) == delays


def test_the_fourth_failure_in_a_minute_is_too_many() -> None:
    """LIFE-9: three restarts in 60 s are borne, the fourth failure is not, and the reason has the numbers."""
    ours = book(Strategy.ONE_FOR_ONE)
    for now in (0, 20, 40):
        ours.failed("door", now=now, jitter=0.5)
    reason = _reason(ours.failed("door", now=59, jitter=0.5))
    assert ("door failed", "3 times in the last 60 s") == (
        reason[:11],
        reason[reason.index("3 times") :][:24],
    )


def test_a_calm_window_forgives() -> None:
    """LIFE-9: what is older than the window no longer counts, neither for the limit nor for the delay."""
    ours = book(Strategy.ONE_FOR_ONE)
    for now in (0, 1, 2):
        ours.failed("door", now=now, jitter=0.5)
    assert Restart(delay_s=0.1, which=("door",)) == ours.failed("door", now=62, jitter=0.5)


def test_one_for_one_counts_each_child_alone() -> None:
    """Children that share no fate share no count: one that crashes does not use up its sibling's restarts."""
    ours = book(Strategy.ONE_FOR_ONE, max_restarts=1)
    ours.failed("door", now=0, jitter=0.5)
    assert Restart(delay_s=0.1, which=("store",)) == ours.failed("store", now=1, jitter=0.5)


@pytest.mark.parametrize("strategy", [Strategy.ONE_FOR_ALL, Strategy.REST_FOR_ONE])
def test_a_group_of_one_fate_has_one_count(strategy: Strategy) -> None:
    """Where failures restart others, they are counted together."""
    ours = book(strategy, max_restarts=1)
    ours.failed("door", now=0, jitter=0.5)
    assert "group of store, index, door" in _reason(ours.failed("store", now=1, jitter=0.5))


def test_children_come_and_go() -> None:
    """A child added later starts last; one that ended is no longer restarted and its count is forgotten."""
    ours = book(Strategy.REST_FOR_ONE)
    ours.add("late")
    ours.remove("index")
    assert Restart(delay_s=0.1, which=("store", "door", "late")) == ours.failed("store", now=0, jitter=0.5)


@given(
    st.sampled_from(RESTARTING),
    st.integers(min_value=0, max_value=4),
    st.lists(
        st.tuples(
            st.floats(min_value=0, max_value=30), st.sampled_from(CHILDREN), st.floats(0, 1, exclude_max=True)
        ),
        max_size=60,
    ),
)
def test_no_window_ever_holds_more_restarts_than_allowed(
    strategy: Strategy, max_restarts: int, failures: list[tuple[float, str, float]]
) -> None:
    """LIFE-9: over any history, restarts of one count within `within_s` never exceed `max_restarts`."""
    ours = book(strategy, max_restarts=max_restarts)
    now = 0.0
    restarted: dict[str, list[float]] = {}
    for pause, child, jitter in failures:
        now += pause
        decision = ours.failed(child, now=now, jitter=jitter)
        count = restarted.setdefault(child if strategy is Strategy.ONE_FOR_ONE else "", [])
        recent = [at for at in count if at > now - 60]
        assert isinstance(decision, GiveUp) == (len(recent) >= max_restarts)
        if isinstance(decision, Restart):
            count.append(now)
            assert child in decision.which
            assert [name for name in CHILDREN if name in decision.which] == list(decision.which)
            assert 0 < decision.delay_s <= Backoff().cap_s


@pytest.mark.parametrize("child", ["door", ""])
def test_names_are_unique_and_not_empty(child: str) -> None:
    """A second child of the same name, or one without, is refused."""
    with pytest.raises(ValueError, match="name"):
        book(Strategy.ONE_FOR_ONE).add(child)


def test_an_unknown_child_is_a_mistake() -> None:
    """Asking about a child that the book does not hold raises."""
    ours = book(Strategy.ONE_FOR_ONE)
    with pytest.raises(KeyError):
        ours.failed("nobody", now=0, jitter=0)
    with pytest.raises(KeyError):
        ours.remove("nobody")


@pytest.mark.parametrize(("max_restarts", "within_s"), [(-1, 60), (3, 0)])
def test_an_intensity_makes_sense(max_restarts: int, within_s: float) -> None:
    """A limit below nothing, or over no time, is refused."""
    with pytest.raises(ValueError, match="max_restarts"):
        Intensity(max_restarts, within_s)


def _reason(decision: Restart | GiveUp) -> str:
    assert isinstance(decision, GiveUp)
    return decision.reason


def _delay(decision: Restart | GiveUp) -> float:
    assert isinstance(decision, Restart)
    return decision.delay_s
