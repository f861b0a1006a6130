"""A breaker under any history: no illegal move, no leaked permit, and always a way back to closed."""

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reach.policy.breaker import Breaker
from reach.policy.breaker_settings import BreakerSettings
from reach.policy.breaker_state import MOVES, State
from reach.policy.permits import PASS, Pass, Permit, Refused

CAP_S = 60.0
TIMEOUT_S = 30.0
BEFORE_S = 15.0
"""No call lasts longer, so that outcomes of before are behind us by then."""

JITTERS = st.floats(0, 1, exclude_max=True)
OUTCOMES = st.sampled_from([True, True, False, None])


class BreakerMachine(RuleBasedStateMachine):
    """Calls, probes, operators, prober and supervisor, in any order, on a manual clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.out: list[Permit] = []
        self.before = State.CLOSED

    @initialize(leads=st.booleans(), core=st.booleans(), slow_ms=st.sampled_from([None, 50.0]))
    def start(self, leads: bool, core: bool, slow_ms: float | None) -> None:
        chosen = BreakerSettings(wait_cap_s=CAP_S, half_open_timeout_s=TIMEOUT_S, slow_ms=slow_ms)
        self.quota = chosen.permitted_calls_in_half_open if leads else chosen.local_permits
        self.breaker = Breaker(chosen, core=core, leads=leads)

    @rule(seconds=st.one_of(st.floats(0, 2), st.floats(0, 100)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(jitter=JITTERS)
    def the_lane_fails(self, jitter: float) -> None:
        for _ in range(10):
            self.breaker.record(self.now, failed=True, latency_ms=0.0, jitter=jitter)
        assert self.breaker.state in (State.OPEN, State.HALF_OPEN, State.FORCED_OPEN, State.DISABLED)

    @precondition(lambda self: self.breaker.state is State.OPEN)
    @rule()
    def the_wait_ends(self) -> None:
        self.now = max(self.now, self.breaker.open_until)
        self.ask(lasts_s=15.0, core=False, last=False)
        assert State.HALF_OPEN is self.breaker.state

    @rule(lasts_s=st.sampled_from([0.5, 15.0, 500.0, math.inf]), core=st.booleans(), last=st.booleans())
    def ask(self, lasts_s: float, core: bool, last: bool) -> None:
        closed = self.breaker.closed
        priority = "core" if core else "normal"
        verdict = self.breaker.admit(
            self.now, priority=priority, expires_at=self.now + lasts_s, last_usable=last
        )
        if closed:
            assert PASS is verdict
        match verdict:
            case Permit():
                assert State.HALF_OPEN is self.breaker.state
                assert self.now < verdict.expires_at <= self.now + TIMEOUT_S
                self.out.append(verdict)
            case Refused(retry_after_s, why):
                assert why
                assert (State.FORCED_OPEN is self.breaker.state) == (retry_after_s is None)
                assert retry_after_s is None or retry_after_s >= 0
            case Pass():
                assert self.breaker.closed or (core and last)

    @rule(
        count=st.sampled_from([1, 9, 30]),
        failed=OUTCOMES,
        ms=st.sampled_from([5.0, 60.0, 1_000.0, 15_000.0]),
        jitter=JITTERS,
    )
    def calls_end(self, count: int, failed: bool | None, ms: float, jitter: float) -> None:
        for _ in range(count):
            self.breaker.record(self.now, failed=failed, latency_ms=ms, jitter=jitter)

    @precondition(lambda self: self.out)
    @rule(
        data=st.data(),
        failed=OUTCOMES,
        ms=st.sampled_from([5.0, 1_000.0]),
        jitter=JITTERS,
        keep=st.booleans(),
    )
    def a_probe_ends(
        self, data: st.DataObject, failed: bool | None, ms: float, jitter: float, keep: bool
    ) -> None:
        permit = data.draw(st.sampled_from(self.out))
        self.breaker.record(self.now, failed=failed, latency_ms=ms, jitter=jitter, permit=permit)
        assert permit.spent or permit.round is not self.breaker._round
        if not keep:  # Kept ones are reported again: nothing may follow from that.
            self.out.remove(permit)

    @rule(ok=st.booleans())
    def the_prober_reports(self, ok: bool) -> None:
        self.breaker.probed(self.now, ok=ok)

    @rule(seconds=st.one_of(st.none(), st.floats(-5, CAP_S)), jitter=JITTERS)
    def the_supervisor_opens(self, seconds: float | None, jitter: float) -> None:
        was, until = self.breaker.state, self.breaker.open_until
        self.breaker.trip(
            self.now,
            why="everybody's outcomes",
            jitter=jitter,
            until=None if seconds is None else self.now + seconds,
        )
        if was is State.OPEN:
            assert self.breaker.open_until >= until

    @rule(word=st.sampled_from(["force_open", "force_close", "disable", "enable", "enable"]))
    def an_operator_speaks(self, word: str) -> None:
        match word:
            case "force_open":
                self.breaker.force_open()
            case "force_close":
                self.breaker.force_close(self.now)
            case "disable":
                self.breaker.disable()
            case _:
                self.breaker.enable(self.now)

    @rule()
    def it_rests(self) -> None:
        self.breaker.rest(self.now)

    @invariant()
    def moves_are_legal(self) -> None:
        if hasattr(self, "breaker"):
            after = self.breaker.state
            # Time may end a round, and at once begin the next: each of the two moves is in the table.
            assert after is self.before or any(
                after in MOVES[via] and (via is self.before or via in MOVES[self.before]) for via in State
            )
            self.before = after

    @invariant()
    def its_faces_agree(self) -> None:
        if hasattr(self, "breaker"):
            breaker = self.breaker
            assert (breaker.state in (State.CLOSED, State.DISABLED)) == breaker.closed
            assert (State.HALF_OPEN is breaker.state) == (breaker._round is not None)
            assert breaker.closed == (breaker.why is None)
            assert breaker.state is not State.OPEN or breaker.open_until <= self.now + CAP_S + TIMEOUT_S

    @invariant()
    def no_permit_leaks(self) -> None:
        if hasattr(self, "breaker") and self.breaker._round is not None:
            here = self.breaker._round
            live = [p for p in self.out if p.round is here and not p.spent and p.expires_at > self.now]
            assert here.held(self.now) == len(live) <= self.quota
            assert here.judged <= self.quota + len(self.out)

    def teardown(self) -> None:
        """Healthy traffic leads to closed within the longest wait, a round and what hung before."""
        if not hasattr(self, "breaker"):
            return
        self.breaker.enable(self.now)
        self.now += BEFORE_S
        ends = self.now + CAP_S + 3 * TIMEOUT_S
        while self.now < ends and self.breaker.state is not State.CLOSED:
            verdict = self.breaker.admit(self.now, expires_at=self.now + 1)
            if not isinstance(verdict, Refused):
                permit = verdict if isinstance(verdict, Permit) else None
                self.breaker.record(self.now, failed=False, latency_ms=5.0, jitter=0.5, permit=permit)
            self.now += 0.5
        assert State.CLOSED is self.breaker.state


TestBreakerMachine = BreakerMachine.TestCase
TestBreakerMachine.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
