"""Leases: misses, expiry told once, generations, and that silence is only counted while somebody listens."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from reach.policy.lease import MOVES, WEIGHT, Answer, Change, Heard, Kind, Leases, State, interval_s

ONE = "invoice-extractor-k3m7q2xa"


def book(*, generation: int = 1, ttl_s: float = 30.0, now: float = 0.0) -> Leases:
    leases = Leases()
    leases.register(ONE, generation=generation, ttl_s=ttl_s, now=now)
    return leases


def kinds(changes: list[Change]) -> list[Kind]:
    return [change.kind for change in changes]


@pytest.mark.parametrize(
    ("failures", "jitter", "expected"),
    [(0, 0.5, 10.0), (0, 0.0, 9.0), (1, 0.5, 11.0), (5, 0.5, 15.0), (50, 0.5, 15.0)],
)
def test_heartbeats_come_each_third_of_the_lease(failures: int, jitter: float, expected: float) -> None:
    """LIFE-1: ttl/3, a tenth early or late, a tenth longer for each failure, at most a half longer."""
    assert pytest.approx(expected) == interval_s(30.0, failures=failures, jitter=jitter)


@given(st.integers(0, 100), st.floats(0, 1, exclude_max=True))
def test_a_stretched_heartbeat_still_comes_before_suspicion(failures: int, jitter: float) -> None:
    """LIFE-1, LIFE-2: the longest interval is shorter than two plain ones, so it alone makes nobody suspect."""
    assert interval_s(30.0, failures=failures, jitter=jitter) < 20.0


@pytest.mark.parametrize(("ttl_s", "failures", "jitter"), [(0.0, 0, 0.5), (30.0, -1, 0.5), (30.0, 0, 1.0)])
def test_an_interval_of_nothing_is_refused(ttl_s: float, failures: int, jitter: float) -> None:
    """Arguments out of range are told."""
    with pytest.raises(ValueError, match="ttl_s is positive"):
        interval_s(ttl_s, failures=failures, jitter=jitter)


@pytest.mark.parametrize(
    ("now", "state", "weight"),
    [
        (19.9, State.LIVE, 1.0),
        (20.0, State.SUSPECT, 0.3),
        (29.9, State.SUSPECT, 0.3),
        (30.0, State.UNAVAILABLE, 0.0),
        (89.9, State.UNAVAILABLE, 0.0),
        (90.0, State.REMOVED, 0.0),
    ],
)
def test_silence_has_its_steps(now: float, state: State, weight: float) -> None:
    """LIFE-2: two missed is suspect at 0.3, three is unavailable at 0, and after 60 s more it is removed."""
    leases = book()
    for due in (20.0, 30.0, 90.0, now):
        if due <= now:
            leases.due(due)
    assert (state, weight) == (leases.state(ONE), leases.weight(ONE))


def test_a_lease_that_runs_out_says_so_once() -> None:
    """LIFE-6, case 11: exactly one `expired`, never `registered`, however often it is looked at."""
    leases = book()
    told = [change for now in range(200) for change in leases.due(float(now))]
    assert [
        Change(Kind.SUSPECTED, ONE, 1, 2),
        Change(Kind.EXPIRED, ONE, 1, 3),
        Change(Kind.REMOVED, ONE, 1, 9),
    ] == told


def test_a_late_look_skips_suspicion() -> None:
    """Whoever looks only after the lease's end hears of its end, not of a suspicion that is over."""
    assert [Change(Kind.EXPIRED, ONE, 1, 5)] == book().due(55.0)


def test_heartbeats_keep_an_instance_live() -> None:
    """LIFE-1: beats at the longest interval for an hour change nothing."""
    leases = book()
    for beat in range(1, 220):
        now = beat * 16.5
        assert [] == leases.due(now)
        assert Heard(Answer.WELCOME) == leases.heard(ONE, generation=1, now=now)
    assert State.LIVE == leases.state(ONE)


@pytest.mark.parametrize(("silent_s", "misses"), [(25.0, 2), (45.0, 4)])
def test_a_recovery_tells_how_long_it_was_silent(silent_s: float, misses: int) -> None:
    """LIFE-3: back after two misses or more is told with their number: it warms up."""
    leases = book()
    leases.due(20.0)
    leases.due(silent_s)
    found = leases.heard(ONE, generation=1, now=silent_s)
    assert Heard(Answer.WELCOME, Change(Kind.RECOVERED, ONE, 1, misses)) == found
    assert [Kind.SUSPECTED] == kinds(leases.due(silent_s + 20.0))


def test_an_unknown_instance_is_asked_to_register() -> None:
    """LIFE-6: the heartbeat of an instance that is not known, or no longer, begins nothing."""
    leases = book()
    assert Answer.REGISTER_AGAIN == leases.heard("other", generation=1, now=1.0).answer
    leases.due(30.0)
    leases.due(90.0)
    assert Heard(Answer.REGISTER_AGAIN) == leases.heard(ONE, generation=1, now=91.0)
    assert (0, None, State.REMOVED) == (len(leases), leases.generation(ONE), leases.state(ONE))


def test_only_the_newest_generation_counts() -> None:
    """LIFE-6: a newer start takes the place of the older; what the older still says changes nothing."""
    leases = book(generation=5)
    assert Change(Kind.REGISTERED, ONE, 6) == leases.register(ONE, generation=6, ttl_s=30.0, now=1.0).change
    assert Heard(Answer.OUTDATED) == leases.register(ONE, generation=5, ttl_s=30.0, now=2.0)
    assert Heard(Answer.OUTDATED) == leases.heard(ONE, generation=5, now=2.0)
    assert leases.goodbye(ONE, generation=5, now=2.0) is None
    assert leases.gone(ONE, generation=5, now=2.0) is None
    assert (State.LIVE, 6) == (leases.state(ONE), leases.generation(ONE))


def test_a_heartbeat_ahead_of_its_registration_asks_for_it() -> None:
    """A newer generation whose registration was lost is asked for it, and does not renew the older lease."""
    leases = book()
    assert Heard(Answer.REGISTER_AGAIN) == leases.heard(ONE, generation=2, now=19.0)
    assert [Kind.SUSPECTED] == kinds(leases.due(20.0))


def test_registering_again_renews_without_news() -> None:
    """An instance that reconnects registers again: the same generation is no new one."""
    leases = book()
    assert Heard(Answer.WELCOME) == leases.register(ONE, generation=1, ttl_s=30.0, now=15.0)
    assert [] == leases.due(34.9)


def test_a_goodbye_is_final() -> None:
    """LIFE-7: after its goodbye an instance gets no work, whatever of it still arrives, and is removed after 60 s."""
    leases = book()
    assert Change(Kind.LEFT, ONE, 1) == leases.goodbye(ONE, generation=1, now=5.0)
    assert leases.goodbye(ONE, generation=1, now=6.0) is None
    assert leases.gone(ONE, generation=1, now=6.0) is None
    assert Heard(Answer.LEAVING) == leases.heard(ONE, generation=1, now=7.0)
    assert Heard(Answer.LEAVING) == leases.register(ONE, generation=1, ttl_s=30.0, now=8.0)
    assert [] == leases.due(64.9)
    assert [Kind.REMOVED] == kinds(leases.due(65.0))


def test_a_lost_link_does_not_wait_for_the_lease() -> None:
    """LIFE-4: what the sentinel saw end has weight 0 at once, and comes back by registering."""
    leases = book()
    assert Change(Kind.LOST, ONE, 1) == leases.gone(ONE, generation=1, now=5.0)
    assert leases.gone(ONE, generation=1, now=5.1) is None
    assert 0.0 == leases.weight(ONE)
    found = leases.register(ONE, generation=1, ttl_s=30.0, now=6.0)
    assert Heard(Answer.WELCOME, Change(Kind.RECOVERED, ONE, 1, 0)) == found
    assert [Kind.SUSPECTED] == kinds(leases.due(26.0))


def test_a_changed_lease_holds_at_once() -> None:
    """A heartbeat may bring another lease time, longer or shorter."""
    leases = book()
    leases.heard(ONE, generation=1, now=1.0, ttl_s=3.0)
    assert [Kind.SUSPECTED] == kinds(leases.due(3.0))
    leases.heard(ONE, generation=1, now=3.0, ttl_s=300.0)
    assert [] == leases.due(202.0)


def test_silence_while_nobody_listened_is_no_miss() -> None:
    """A supervisor that was itself stopped for a minute forgives, and nobody is lost by its sleep."""
    leases = book()
    leases.forgive(60.0)
    assert [] == leases.due(79.9)
    assert [Kind.SUSPECTED] == kinds(leases.due(80.0))


def test_a_new_leader_takes_the_table_as_just_seen() -> None:
    """LIFE-8: what the table shows has one lease to be heard of; nothing is registered by it."""
    leases = Leases()
    for number, state in enumerate((State.LIVE, State.SUSPECT, State.UNAVAILABLE)):
        leases.adopt(f"i{number}", generation=1, ttl_s=30.0, state=state, now=100.0)
    assert [] == leases.due(119.9)
    found = [(change.kind, change.instance) for now in (120.0, 130.0, 160.0) for change in leases.due(now)]
    assert [
        (Kind.SUSPECTED, "i0"),
        (Kind.EXPIRED, "i1"),
        (Kind.EXPIRED, "i0"),
        (Kind.REMOVED, "i2"),
    ] == sorted(found, key=lambda one: (one[0] != Kind.SUSPECTED, one[0] == Kind.REMOVED, one[1] != "i1"))


def test_a_known_lease_is_not_adopted_over() -> None:
    """What an instance itself said after the table was written wins; a newer generation of the table wins too."""
    leases = book(generation=3, now=50.0)
    leases.adopt(ONE, generation=3, ttl_s=30.0, state=State.UNAVAILABLE, now=51.0)
    assert State.LIVE == leases.state(ONE)
    leases.adopt(ONE, generation=4, ttl_s=30.0, state=State.SUSPECT, now=52.0)
    assert (State.SUSPECT, 4) == (leases.state(ONE), leases.generation(ONE))


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, math.nan])
def test_a_lease_of_no_time_is_refused(ttl_s: float) -> None:
    """A lease that would expire at once is a mistake, whoever brings it."""
    leases = book()
    with pytest.raises(ValueError, match="positive number of seconds"):
        leases.register("other", generation=1, ttl_s=ttl_s, now=0.0)
    with pytest.raises(ValueError, match="positive number of seconds"):
        leases.heard(ONE, generation=1, now=0.0, ttl_s=ttl_s)
    with pytest.raises(ValueError, match="cannot be adopted"):
        leases.adopt("other", generation=1, ttl_s=ttl_s, state=State.LIVE, now=0.0)


def test_time_that_steps_back_takes_nothing_away() -> None:
    """A `now` a little before the last one neither shortens a lease nor counts misses."""
    leases = book(now=10.0)
    leases.heard(ONE, generation=1, now=9.0)
    assert [] == leases.due(29.9)


def test_every_state_has_moves_and_a_weight() -> None:
    """The tables are whole, and only what is removed is final."""
    assert set(State) == MOVES.keys() == WEIGHT.keys()
    assert [State.REMOVED] == [state for state, onward in MOVES.items() if not onward]


def test_ten_thousand_leases_are_looked_at_when_due_only() -> None:
    """SPEED-4: with heartbeats coming, `due` touches no lease before its time, and the queue does not grow."""
    leases = Leases()
    names = [f"i{number}" for number in range(10_000)]
    for name in names:
        leases.register(name, generation=1, ttl_s=30.0, now=0.0)
    for now in (10.0, 20.0, 30.0, 40.0):
        for name in names:
            leases.heard(name, generation=1, now=now)
        assert [] == leases.due(now)
        assert leases.next_due() in {20.0, 40.0, 60.0}
    assert len(names) == len(leases._queue)


class Life(RuleBasedStateMachine):
    """Random lives against a naive model that only remembers when each instance was last heard of."""

    def __init__(self) -> None:
        super().__init__()
        self.leases = Leases()
        self.now = 0.0
        self.heard: dict[str, tuple[int, float]] = {}
        self.expired: set[str] = set()
        self.over: set[str] = set()  # Left or lost: silence says nothing more.

    @rule(seconds=st.sampled_from([0.5, 3.0, 9.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for change in self.leases.due(self.now):
            assert Kind.REGISTERED != change.kind
            generation, heard_at = self.heard[change.instance]
            assert generation == change.generation
            if change.kind is Kind.EXPIRED:
                assert change.instance not in self.expired
                assert self.now - heard_at >= 30.0
                self.expired.add(change.instance)
            elif change.kind is Kind.SUSPECTED:
                assert 20.0 <= self.now - heard_at < 30.0
            elif change.kind is Kind.REMOVED:
                assert change.instance in self.expired | self.over
                del self.heard[change.instance]

    @rule(name=st.sampled_from("abc"), generation=st.integers(1, 3))
    def registers(self, name: str, generation: int) -> None:
        answer = self.leases.register(name, generation=generation, ttl_s=30.0, now=self.now).answer
        known = self.heard.get(name)
        if known is not None and generation < known[0]:
            assert Answer.OUTDATED == answer
        elif answer is Answer.WELCOME:
            self._fresh(name, generation)
        else:
            assert (Answer.LEAVING, State.LEFT) == (answer, self.leases.state(name))

    @rule(name=st.sampled_from("abc"), generation=st.integers(1, 3))
    def beats(self, name: str, generation: int) -> None:
        found = self.leases.heard(name, generation=generation, now=self.now)
        assert found.change is None or found.change.kind is Kind.RECOVERED
        known = self.heard.get(name)
        if known is None or generation > known[0]:
            assert Answer.REGISTER_AGAIN == found.answer
        elif generation < known[0]:
            assert Answer.OUTDATED == found.answer
        elif found.answer is Answer.WELCOME:
            self._fresh(name, generation)

    @rule(
        name=st.sampled_from("abc"), generation=st.integers(1, 3), kind=st.sampled_from(["gone", "goodbye"])
    )
    def ends(self, name: str, generation: int, kind: str) -> None:
        if getattr(self.leases, kind)(name, generation=generation, now=self.now) is not None:
            self.over.add(name)

    def _fresh(self, name: str, generation: int) -> None:
        self.heard[name] = (generation, self.now)
        self.expired.discard(name)
        self.over.discard(name)

    @invariant()
    def states_are_what_silence_makes_them(self) -> None:
        assert self.heard.keys() == {name for name in "abc" if name in self.leases}
        for name, (_, heard_at) in self.heard.items():
            if name in self.over:
                assert 0.0 == self.leases.weight(name)
            else:
                silent_s = self.now - heard_at
                state = (
                    State.LIVE if silent_s < 20.0 else State.SUSPECT if silent_s < 30.0 else State.UNAVAILABLE
                )
                assert state == self.leases.state(name)

    @invariant()
    def the_queue_is_bounded(self) -> None:
        assert all(
            due > self.now - 1e-9 or lease.serial != serial for due, serial, lease in self.leases._queue
        )


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
