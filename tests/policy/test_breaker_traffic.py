"""A breaker before a lane at 100 calls a second, on a manual clock: how soon it opens, and that it closes."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from reach.faults import Code, Reason
from reach.policy.blame import counts_against_lane
from reach.policy.breaker import Breaker
from reach.policy.breaker_state import State
from reach.policy.permits import Permit, Refused
from reach.wire.reply import Failure

RATE_PER_S = 100

FAILED = Failure.of(Reason.REMOTE_5XX)


@dataclass(slots=True)
class Lane:
    """What a call to the lane meets: `outcome(chance)` gives its failure, or None, and its latency in ms."""

    outcome: Callable[[random.Random], tuple[Failure | None, float]]


def well(chance: random.Random) -> tuple[Failure | None, float]:
    return None, chance.lognormvariate(3.5, 0.6)  # a median of 33 ms, a P99 of 134 ms


def failing(share: float) -> Callable[[random.Random], tuple[Failure | None, float]]:
    def outcome(chance: random.Random) -> tuple[Failure | None, float]:
        failure, ms = well(chance)
        return (FAILED, ms) if chance.random() < share else (failure, ms)

    return outcome


def slow(chance: random.Random) -> tuple[Failure | None, float]:
    failure, ms = well(chance)
    return failure, ms + 1_000


def refusing(reason: Reason, code: Code | None = None) -> Callable[..., tuple[Failure | None, float]]:
    return lambda chance: (Failure.of(reason, code=code), 1.0)


@dataclass(slots=True)
class Traffic:
    """A caller of one lane; `reached` counts the calls that got as far as the lane."""

    breaker: Breaker
    chance: random.Random
    now: float = 0.0
    reached: int = 0

    def steps(self, lane: Lane, seconds: float) -> Iterator[float]:
        """Make 100 calls a second; gives the time since the start after each."""
        start, calls = self.now, int(seconds * RATE_PER_S)
        for call in range(calls):
            self.now = start + (call + 1) / RATE_PER_S
            verdict = self.breaker.admit(self.now)
            if not isinstance(verdict, Refused):
                self.reached += 1
                failure, ms = lane.outcome(self.chance)
                self.breaker.record(
                    self.now,
                    failed=counts_against_lane(failure),
                    latency_ms=ms,
                    jitter=self.chance.random(),
                    permit=verdict if isinstance(verdict, Permit) else None,
                )
            yield self.now - start

    def run(self, lane: Lane, seconds: float) -> None:
        for _ in self.steps(lane, seconds):
            pass

    def until(self, state: State, lane: Lane, *, within_s: float) -> float:
        """Give the seconds until the breaker is in `state`; infinite if that takes longer."""
        return next((s for s in self.steps(lane, within_s) if self.breaker.state is state), float("inf"))


@pytest.fixture(params=range(5))
def traffic(request: pytest.FixtureRequest) -> Traffic:
    """A caller whose lane has been well for 90 s: the window is full of good calls, the usual pace known."""
    traffic = Traffic(Breaker(), random.Random(request.param))
    traffic.run(Lane(well), 90)
    assert State.CLOSED is traffic.breaker.state
    return traffic


@pytest.mark.parametrize(
    ("lane", "bound_s"),
    [(Lane(failing(1.0)), 2), (Lane(failing(0.6)), 6), (Lane(slow), 10)],
    ids=["fails", "60% fail", "slow"],
)
def test_a_bad_lane_opens_in_time(traffic: Traffic, lane: Lane, bound_s: float) -> None:
    """BREAK-1: total failure opens within 2 s, 60 % within 6 s, slowness alone within 10 s."""
    assert bound_s >= traffic.until(State.OPEN, lane, within_s=60)


@pytest.mark.parametrize("share", [0.05, 0.15])
def test_a_lane_that_fails_a_little_stays_closed(traffic: Traffic, share: float) -> None:
    """BREAK-1: what is well under the threshold never opens it."""
    traffic.run(Lane(failing(share)), 120)
    assert (State.CLOSED, 0) == (traffic.breaker.state, traffic.breaker.opened_in_a_row)


def test_a_good_lane_stays_closed(traffic: Traffic) -> None:
    """BREAK-1: ordinary spread of latencies is no slowness."""
    traffic.run(Lane(well), 300)
    assert (State.CLOSED, 0) == (traffic.breaker.state, traffic.breaker.opened_in_a_row)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Reason.REMOTE_4XX, None),
        (Reason.NOT_FOUND, Code.UPSTREAM_4XX),
        (Reason.SCHEMA, None),
        (Reason.CANCELLED, None),
        (Reason.OVERLOADED, None),
        (Reason.REMOTE_429, None),
    ],
)
def test_a_storm_of_the_callers_own_errors_never_opens_it(
    traffic: Traffic, reason: Reason, code: Code | None
) -> None:
    """BREAK-2, case 17: 4xx, wrong parameters, cancellations and refusals never trip, alone or among others."""
    traffic.run(Lane(refusing(reason, code)), 60)
    traffic.run(Lane(well), 60)
    assert (State.CLOSED, 0) == (traffic.breaker.state, traffic.breaker.opened_in_a_row)


@pytest.mark.parametrize("lane", [Lane(failing(1.0)), Lane(failing(0.6)), Lane(slow)])
def test_recovery_closes_it(traffic: Traffic, lane: Lane) -> None:
    """BREAK-3: a lane that is well again is closed after the wait that had begun, and stays closed."""
    traffic.run(lane, 45)
    breaker = traffic.breaker
    wait_s = breaker.open_until - traffic.now if breaker.state is State.OPEN else 0.0
    assert wait_s + 1 >= traffic.until(State.CLOSED, Lane(well), within_s=400)
    traffic.run(Lane(well), 90)
    assert State.CLOSED is breaker.state


def test_a_dead_lane_sees_few_calls(traffic: Traffic) -> None:
    """BREAK-5: of 60 000 calls in ten minutes, a dead lane sees ten and then one probe a wait."""
    traffic.reached = 0
    traffic.run(Lane(failing(1.0)), 600)
    assert traffic.reached <= 10 + 13
