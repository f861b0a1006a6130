"""What a caller learns of its lanes, and that it unlearns it (BREAK-1 to BREAK-5, RETRY-5)."""

import logging

import pytest

from reach.call.lanes import SHUN_S, Lane, Lanes
from reach.faults import Reason
from reach.observe.metrics import Metrics
from reach.policy.breaker_state import State
from reach.policy.permits import Permit
from reach.wire.reply import Failure

CAP, ONE = "a.b", "one"


def broken(lanes: Lanes, *, now: float, core: bool = False) -> Lane:
    """A lane that has failed ten times in a row, which opens every breaker that it has."""
    lane = lanes.of(CAP, ONE)
    if core:
        lane.breaker_of("core")
    for _ in range(10):
        fail(lanes, lane, now)
    return lane


def fail(lanes: Lanes, lane: Lane, now: float, reason: Reason = Reason.REMOTE_5XX) -> None:
    lanes.bad(lane, now, Failure.of(reason), waited_ms=10.0, permit=None, first=True)


def test_a_lane_that_fails_is_troubled_until_a_probe_succeeds() -> None:
    """BREAK-1, BREAK-3: the pipeline is told to look, and told when it need not any more; the gauge says the same."""
    metrics = Metrics()
    lanes = Lanes(metrics)
    lane = broken(lanes, now=100.0)
    assert ({CAP: {ONE}}, 1.0) == (lanes.troubled, metrics.breaker_open.value(CAP, ONE))
    permit = lane.breaker.admit(lane.breaker.open_until)
    assert isinstance(permit, Permit)
    lanes.good(lane, lane.breaker.open_until + 0.01, 5.0, permit, first=True)
    assert ({}, 0.0) == (lanes.troubled, metrics.breaker_open.value(CAP, ONE))


def test_why_it_opened_is_logged_with_the_numbers(caplog: pytest.LogCaptureFixture) -> None:
    """BREAK-1: an opening is one line that says which lane, and why."""
    with caplog.at_level(logging.WARNING, logger="reach.call"):
        broken(Lanes(Metrics()), now=100.0)
    assert ["lane one of a.b: its breaker opened (10 calls in a row failed)"] == caplog.messages


@pytest.mark.parametrize(
    "reason",
    [
        Reason.REMOTE_4XX,
        Reason.SCHEMA,
        Reason.CANCELLED,
        Reason.OVERLOADED,
        Reason.BREAKER_OPEN,
        Reason.FORBIDDEN,
    ],
)
def test_what_is_not_its_fault_never_troubles_a_lane(reason: Reason) -> None:
    """BREAK-2, case 17: a storm of these leaves the lane as it was."""
    lanes = Lanes(Metrics())
    lane = lanes.of(CAP, ONE)
    for call in range(1_000):
        fail(lanes, lane, 100.0 + call / 100, reason)
    assert (State.CLOSED, {}) == (lane.breaker.state, lanes.troubled)


def test_impatience_never_troubles_a_lane_that_is_not_known_yet() -> None:
    """BREAK-2, case 17: timeouts that nobody would call slow are their caller's own, from the first call on."""
    lanes = Lanes(Metrics())
    lane = lanes.of("a.b", "p")
    deadline = Failure.of(Reason.DEADLINE)
    for _ in range(30):
        assert None is lanes.bad(lane, 1.0, deadline, waited_ms=5.0, permit=None, first=True)
    assert lane.well
    for _ in range(10):
        assert True is lanes.bad(lane, 1.0, deadline, waited_ms=200.0, permit=None, first=True)
    assert not lane.well


def test_core_calls_have_a_breaker_that_bears_more() -> None:
    """BREAK-1: of 40 % failures the usual breaker opens, and the one for `core` does not."""
    lanes = Lanes(Metrics())
    lane = lanes.of(CAP, ONE)
    core = lane.breaker_of("core")
    for call in range(50):
        now = 100.0 + call / 10  # All within the wait of the one that opens.
        if call % 5 < 2:
            fail(lanes, lane, now)
        else:
            lanes.good(lane, now, 5.0, None, first=True)
    assert (State.OPEN, State.CLOSED) == (lane.breaker.state, core.state)


def test_a_core_breaker_recovers_without_core_calls() -> None:
    """BREAK-3: once its wait is over it learns from the calls that the other breaker lets through."""
    lanes = Lanes(Metrics())
    lane = broken(lanes, now=100.0, core=True)
    core = lane.breaker_of("core")
    assert (State.OPEN, State.OPEN) == (lane.breaker.state, core.state)
    now = max(lane.breaker.open_until, core.open_until) + 1.0
    permit = lane.breaker.admit(now)
    assert isinstance(permit, Permit)
    lanes.good(lane, now + 0.01, 5.0, permit, first=True)
    assert (State.CLOSED, State.CLOSED, {}) == (lane.breaker.state, core.state, lanes.troubled)


def test_an_answer_to_an_older_call_does_not_close_a_breaker() -> None:
    """BREAK-3: a success that began before the wait was over proves nothing."""
    lanes = Lanes(Metrics())
    lane = broken(lanes, now=100.0)
    now = lane.breaker.open_until + 0.5
    lanes.good(lane, now, 600.0, None, first=True)
    assert {CAP: {ONE}} == lanes.troubled


def test_a_permit_that_nobody_used_makes_room_for_another() -> None:
    """BREAK-3: a call that ends without a word about the lane gives its permit back."""
    lanes = Lanes(Metrics())
    lane = broken(lanes, now=100.0)
    now = lane.breaker.open_until
    first = lane.breaker.admit(now)
    assert isinstance(first, Permit)
    assert not isinstance(lane.breaker.admit(now), Permit)
    lanes.left(lane, now, first)
    assert isinstance(lane.breaker.admit(now), Permit)


def test_an_instance_is_shunned_for_five_seconds() -> None:
    """RETRY-5: then nothing is remembered of it."""
    lanes = Lanes(Metrics())
    lanes.shun(CAP, "one-aaaaaaaa", 100.0, of=2)
    assert {"one-aaaaaaaa"} == lanes.avoided(CAP, 100.0 + SHUN_S - 0.01)
    assert frozenset() == lanes.avoided(CAP, 100.0 + SHUN_S)
    assert {} == lanes.shunned


def test_never_more_than_half_of_a_lane_is_shunned() -> None:
    """Design, section 5: of three instances two are avoided at most, and a sole one never is."""
    lanes = Lanes(Metrics())
    for instance in ("one-aaaaaaaa", "one-bbbbbbbb", "one-cccccccc"):
        lanes.shun(CAP, instance, 100.0, of=3)
    assert {"one-aaaaaaaa", "one-bbbbbbbb"} == lanes.avoided(CAP, 101.0)
    lanes.shun("sole.lane", "sole-aaaaaaaa", 100.0, of=1)
    assert frozenset() == lanes.avoided("sole.lane", 101.0)


def test_lanes_that_rest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that meets ever new capabilities keeps a bounded number, and those that are in use or in trouble."""
    monkeypatch.setattr("reach.call.lanes.MAX_LANES", 10)
    lanes = Lanes(Metrics())
    busy = lanes.of("busy.lane", ONE)
    busy.open = 1
    bad = broken(lanes, now=100.0)
    for number in range(100):
        lanes.of(f"cap.n{number}", ONE)
    assert len(lanes) <= 10
    assert (busy, bad) == (lanes.of("busy.lane", ONE), lanes.of(CAP, ONE))
