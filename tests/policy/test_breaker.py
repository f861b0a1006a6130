"""When a breaker opens, what it lets through, and what closes it (BREAK-1 … BREAK-5), case by case."""

import itertools
import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from reach.policy.breaker import Breaker
from reach.policy.breaker_settings import BreakerSettings
from reach.policy.breaker_state import MOVES, State
from reach.policy.permits import PASS, Permit, Refused

JITTER = 0.5  # a factor of exactly 1


def record(breaker: Breaker, now: float, failed: bool | None = False, ms: float = 10.0, **more: Any) -> None:
    breaker.record(now, failed=failed, latency_ms=ms, jitter=JITTER, **more)


def feed(breaker: Breaker, now: float, *outcomes: tuple[int, bool | None]) -> None:
    """Record outcomes in one second, good and bad as in `(how many, failed)`, without ten failures in a row."""
    for count, failed in outcomes:
        for _ in range(count):
            record(breaker, now, failed)


def opened(**settings: Any) -> Breaker:
    """Give a breaker that opened at 100 s."""
    leads = settings.pop("leads", False)
    breaker = Breaker(BreakerSettings(**settings), leads=leads)
    feed(breaker, 100.0, (10, True))
    assert State.OPEN is breaker.state
    return breaker


def probe(breaker: Breaker, now: float, failed: bool | None = False, ms: float = 10.0) -> None:
    permit = breaker.admit(now)
    assert isinstance(permit, Permit)
    record(breaker, now, failed, ms, permit=permit)


def learned(breaker: Breaker, ms: float, now: float = 0.0) -> Breaker:
    """Let a hundred good calls tell the usual pace."""
    for _ in range(100):
        record(breaker, now, ms=ms)
    return breaker


# ------------------------------------------------------------------------------------------------ opening


def test_a_new_breaker_is_closed() -> None:
    """A lane is trusted until it fails: nobody needs to ask, and who asks may go."""
    breaker = Breaker()
    assert (State.CLOSED, True, PASS, None) == (
        breaker.state,
        breaker.closed,
        breaker.admit(0.0),
        breaker.why,
    )


@pytest.mark.parametrize(
    ("core", "failures", "expected"),
    [(False, 6, State.CLOSED), (False, 7, State.OPEN), (True, 10, State.CLOSED), (True, 11, State.OPEN)],
)
@pytest.mark.parametrize("failures_first", [True, False])
def test_over_the_failure_rate_it_opens(
    core: bool, failures: int, expected: State, failures_first: bool
) -> None:
    """BREAK-1: over 30 % of at least 20 calls (core: 50 %) open it, in whatever order they came."""
    breaker = Breaker(BreakerSettings(consecutive_failures=99), core=core)
    outcomes = [(failures, True), (20 - failures, False)]
    feed(breaker, 1.0, *(outcomes if failures_first else outcomes[::-1]))
    assert expected is breaker.state


def test_nineteen_calls_say_nothing() -> None:
    """BREAK-1: with fewer than 20 calls the rate is not looked at."""
    breaker = Breaker()
    feed(breaker, 1.0, (9, True), (1, False), (9, True))
    assert State.CLOSED is breaker.state


def test_ten_failures_in_a_row_open_it() -> None:
    """BREAK-1: ten consecutive failures open it, however few calls there were, and the reason says so."""
    breaker = Breaker()
    for i in range(9):
        record(breaker, 100.0 * i, True)
    assert State.CLOSED is breaker.state
    record(breaker, 900.0, True)
    assert (State.OPEN, False, "10 calls in a row failed") == (breaker.state, breaker.closed, breaker.why)


def test_the_last_seconds_alone_open_it() -> None:
    """BREAK-1: five bad seconds open it, though the minute as a whole is still good."""
    breaker = Breaker()
    for second in range(55):
        feed(breaker, float(second), (100, False))
    feed(breaker, 60.0, (13, False), (7, True))
    assert State.OPEN is breaker.state
    assert "7 of 20 calls of the last 5 s failed (35%; more than 30% opens)" == breaker.why


def test_without_a_known_pace_nothing_is_slow() -> None:
    """BREAK-1: before the usual P99 is known, and without `slow_ms`, slowness opens nothing."""
    breaker = Breaker()
    for i in range(99):
        record(breaker, 1.0, ms=10.0**i if i < 6 else 1e6)
    assert (State.CLOSED, math.inf, None) == (breaker.state, breaker.slow_ms, breaker.usual_p99_ms)


def test_slow_is_over_three_times_the_usual_p99() -> None:
    """BREAK-1: the bound follows the usual P99, and the reason names it."""
    breaker = learned(Breaker(), 100.0)
    assert 300.0 == pytest.approx(breaker.slow_ms, rel=0.06)
    for _ in range(20):
        record(breaker, 70.0, ms=breaker.slow_ms * 1.1)
    assert State.OPEN is breaker.state
    assert breaker.why is not None
    assert "20 of 20 answers of the last 60 s took longer than" in breaker.why


def test_a_quick_lane_is_not_suspected_below_the_floor() -> None:
    """BREAK-1: a lane of 1 ms is not slow at 100 ms; nothing under the suspicion time is."""
    breaker = learned(Breaker(), 1.0)
    for _ in range(1_000):
        record(breaker, 1.0, ms=149.0)
    assert (State.CLOSED, 150.0) == (breaker.state, breaker.slow_ms)


@pytest.mark.parametrize(("slow", "expected"), [(10, State.CLOSED), (11, State.OPEN)])
def test_the_owner_may_say_what_slow_is(slow: int, expected: State) -> None:
    """BREAK-1: `slow_ms` takes the place of three times usual; over half of the calls slow opens."""
    breaker = Breaker(BreakerSettings(slow_ms=50))
    for i in range(20):
        record(breaker, 1.0, ms=51.0 if i < slow else 50.0)
    assert expected is breaker.state


@pytest.mark.parametrize(("slow", "expected"), [(4, State.CLOSED), (5, State.OPEN)])
def test_a_p99_over_the_bound_opens_it_when_that_is_no_chance(slow: int, expected: State) -> None:
    """BREAK-1: with 100 calls the P99 over the bound opens; two slow ones among a hundred may be chance."""
    breaker = Breaker(BreakerSettings(slow_ms=50))
    for i in range(100):
        record(breaker, 1.0, ms=51.0 if i < slow else 10.0)
    assert expected is breaker.state


@pytest.mark.parametrize(("slow", "expected"), [(1, State.CLOSED), (2, State.OPEN)])
def test_without_sigmas_the_p99_is_taken_as_it_comes(slow: int, expected: State) -> None:
    """BREAK-1: `p99_sigmas=0` is the bare rule: the second slow call of a hundred opens."""
    breaker = Breaker(BreakerSettings(slow_ms=50, p99_sigmas=0))
    for i in range(100):
        record(breaker, 1.0, ms=51.0 if i < slow else 10.0)
    assert expected is breaker.state


def test_the_usual_pace_is_frozen_while_suspect() -> None:
    """BREAK-1: what a lane does while a hundredth of its calls is slow does not become usual."""
    breaker = learned(Breaker(), 100.0)
    before = breaker.usual_p99_ms
    for i in range(400):
        record(breaker, 70.0, ms=1_000.0 if i % 80 == 1 else 200.0)
    assert (State.CLOSED, before) == (breaker.state, breaker.usual_p99_ms)


def test_what_does_not_count_changes_nothing() -> None:
    """BREAK-2: outcomes that say nothing about the far end are as if they had not been."""
    breaker = Breaker()
    feed(breaker, 1.0, (9, True), (1_000, None), (1, True))
    assert State.OPEN is breaker.state


# ------------------------------------------------------------------------------------------------ waiting


def test_while_open_nothing_passes() -> None:
    """BREAK-5: an open breaker refuses, and says for how long and why."""
    breaker = opened()
    assert Refused(10.0, "10 calls in a row failed") == breaker.admit(100.0)
    assert Refused(0.5, "10 calls in a row failed") == breaker.admit(109.5)


def test_the_wait_grows_with_each_opening_in_a_row() -> None:
    """BREAK-3: ten seconds longer each time the probe fails, to the cap."""
    breaker = opened()
    now, waits = 100.0, []
    for _ in range(40):
        waits.append(breaker.open_until - now)
        now = breaker.open_until
        probe(breaker, now, failed=True)
    assert [10.0, 20.0, 30.0] == pytest.approx(waits[:3])
    assert [250.0] * 5 == pytest.approx(waits[-5:])


@pytest.mark.parametrize(("times", "jitter", "expected"), [(1, 0, 8), (1, 1, 12), (30, 0, 200), (99, 1, 300)])
def test_the_wait_is_spread_also_at_its_cap(times: int, jitter: float, expected: float) -> None:
    """BREAK-3: ±20 %, and never over 300 s."""
    assert expected == pytest.approx(BreakerSettings().wait_s(times, jitter=jitter))


def test_a_further_report_never_shortens_the_wait() -> None:
    """BREAK-3: the later of two ends holds."""
    breaker = opened()
    breaker.trip(101.0, why="the supervisor says so", jitter=JITTER, until=105.0)
    assert 110.0 == breaker.open_until
    breaker.trip(101.0, why="the supervisor says so", jitter=JITTER, until=140.0)
    breaker.trip(102.0, why="the supervisor says so", jitter=JITTER)
    record(breaker, 103.0, True)
    assert (140.0, 1) == (breaker.open_until, breaker.opened_in_a_row)


def test_somebody_elses_finding_opens_it() -> None:
    """BREAK-4: the supervisor's word opens a caller's breaker at once."""
    breaker = Breaker()
    breaker.trip(5.0, why="5 callers saw it fail", jitter=JITTER, until=30.0)
    assert Refused(25.0, "5 callers saw it fail") == breaker.admit(5.0)


def test_a_flapping_lane_waits_longer_each_time() -> None:
    """BREAK-3: a lane that fails again within a minute of closing is still in its row of openings."""
    breaker = opened()
    probe(breaker, 110.0)
    assert State.CLOSED is breaker.state
    feed(breaker, 130.0, (10, True))
    assert (2, 150.0) == (breaker.opened_in_a_row, breaker.open_until)


def test_a_minute_closed_ends_the_row() -> None:
    """BREAK-3: who has been well for a whole window starts with ten seconds again."""
    breaker = opened()
    probe(breaker, 110.0)
    feed(breaker, 170.0, (10, True))
    assert (1, 180.0) == (breaker.opened_in_a_row, breaker.open_until)


def test_the_prober_may_end_the_wait() -> None:
    """BREAK-3: a prober's success opens the half-open state early; its failure changes nothing."""
    breaker = opened()
    breaker.probed(101.0, ok=False)
    assert State.OPEN is breaker.state
    breaker.probed(102.0, ok=True)
    assert isinstance(breaker.admit(102.0), Permit)


# ------------------------------------------------------------------------------------------------ half-open


def test_of_fifty_callers_one_probes() -> None:
    """BREAK-3, case 17: without a leader, a caller process lets one probe through at a time."""
    breaker = opened()
    verdicts = [breaker.admit(110.0) for _ in range(50)]
    assert 1 == sum(isinstance(verdict, Permit) for verdict in verdicts)
    assert 49 == sum(isinstance(verdict, Refused) for verdict in verdicts)


def test_a_leader_gives_five_permits_in_all() -> None:
    """BREAK-3: five probes altogether; four that succeeded and one that failed close it."""
    breaker = opened(leads=True)
    verdicts = [breaker.admit(110.0) for _ in range(50)]
    permits = [verdict for verdict in verdicts if isinstance(verdict, Permit)]
    assert 5 == len(permits)
    record(breaker, 110.1, True, permit=permits[0])
    for permit in permits[1:4]:
        record(breaker, 110.1, permit=permit)
        assert isinstance(breaker.admit(110.1), Refused)
    record(breaker, 110.2, permit=permits[4])
    assert State.CLOSED is breaker.state


def test_two_bad_probes_of_five_open_it_again() -> None:
    """BREAK-3: as soon as the probes are over the failure rate, the rest is not waited for."""
    breaker = opened(leads=True)
    permits = [breaker.admit(110.0) for _ in range(5)]
    record(breaker, 110.1, True, permit=permits[0])
    assert State.HALF_OPEN is breaker.state
    record(breaker, 110.1, True, permit=permits[1])
    assert (State.OPEN, 2) == (breaker.state, breaker.opened_in_a_row)
    assert "2 of 2 probe calls failed or were slow" == breaker.why


@pytest.mark.parametrize("failed", [None, False, True])
def test_each_outcome_gives_its_permit_back_once(failed: bool | None) -> None:
    """BREAK-3: whatever became of a probe, its place is free; a second report of it counts nothing."""
    breaker = opened(leads=True)
    permit = breaker.admit(110.0)
    for _ in range(9):
        record(breaker, 110.1, failed, permit=permit)
    more = [breaker.admit(110.1) for _ in range(50)]
    assert (State.HALF_OPEN, 5 if failed is None else 4) == (
        breaker.state,
        sum(isinstance(verdict, Permit) for verdict in more),
    )


def test_a_permit_ends_with_its_calls_deadline() -> None:
    """BREAK-3: a probe whose caller died gives its place back at its deadline."""
    breaker = opened()
    assert isinstance(breaker.admit(110.0, expires_at=112.0), Permit)
    assert isinstance(breaker.admit(111.9), Refused)
    assert isinstance(breaker.admit(112.0), Permit)


def test_a_probe_that_timed_out_still_counts() -> None:
    """BREAK-3: its permit has expired with its deadline, but that it failed is what was asked."""
    breaker = opened()
    permit = breaker.admit(110.0, expires_at=112.0)
    breaker.admit(112.0)
    record(breaker, 112.01, True, permit=permit)
    assert (State.OPEN, 2) == (breaker.state, breaker.opened_in_a_row)


def test_half_open_without_an_outcome_times_out() -> None:
    """BREAK-3, case 17: half-open does not stick; it waits as long as before, and probes again."""
    breaker = opened()
    breaker.admit(110.0)
    assert Refused(10.0, "probing ended after 0 of 1 probe calls, 0 of them bad") == breaker.admit(140.0)
    assert (State.OPEN, 1) == (breaker.state, breaker.opened_in_a_row)
    assert isinstance(breaker.admit(150.0), Permit)


def test_half_open_that_nobody_asked_for_an_hour_probes_at_once() -> None:
    """BREAK-3: the wait after a round counts from its end, not from when a call happens to come."""
    breaker = opened()
    breaker.admit(110.0)
    assert isinstance(breaker.admit(3_700.0), Permit)


@pytest.mark.parametrize(("failed", "expected"), [(False, State.CLOSED), (True, State.OPEN)])
def test_half_open_times_out_to_what_its_probes_say(failed: bool, expected: State) -> None:
    """BREAK-3: a lane with little traffic is judged by the probes there were."""
    breaker = opened(leads=True)
    probe(breaker, 110.0, failed)
    breaker.admit(140.0)
    assert expected is breaker.state


def test_outcomes_of_an_earlier_round_do_not_count() -> None:
    """BREAK-3: a permit of a round that is over says nothing about this one."""
    breaker = opened(leads=True)
    old = breaker.admit(110.0)
    breaker.admit(140.0)
    breaker.admit(150.0)
    record(breaker, 151.0, True, permit=old)
    assert 5 - 1 == sum(isinstance(breaker.admit(151.0), Permit) for _ in range(50))


def test_a_slow_probe_is_a_bad_one() -> None:
    """BREAK-3: a lane that answers, but slowly, is not well yet."""
    breaker = opened(slow_ms=50.0)
    probe(breaker, 110.0, ms=60.0)
    assert State.OPEN is breaker.state


def test_a_lane_that_stays_slower_is_taken_as_it_is() -> None:
    """BREAK-3: good but slow probes, five openings in a row, are the lane's new pace, not its end."""
    breaker = learned(Breaker(), 100.0)
    feed(breaker, 100.0, (10, True))
    for _ in range(4):
        probe(breaker, breaker.open_until, ms=900.0)
    assert (State.OPEN, 5) == (breaker.state, breaker.opened_in_a_row)
    probe(breaker, breaker.open_until, ms=900.0)
    assert (State.CLOSED, 900.0, 2_700.0) == (breaker.state, breaker.usual_p99_ms, breaker.slow_ms)


def test_what_the_owner_calls_slow_stays_slow() -> None:
    """BREAK-3: where `slow_ms` is given, no new pace is accepted."""
    breaker = opened(slow_ms=50.0)
    for _ in range(10):
        probe(breaker, breaker.open_until, ms=60.0)
    assert (State.OPEN, 50.0) == (breaker.state, breaker.slow_ms)


def test_calls_that_hung_when_it_opened_do_not_open_it_again() -> None:
    """BREAK-1: what began before it last closed is not judged, though it times out afterwards."""
    breaker = opened()
    probe(breaker, 110.0)
    for _ in range(50):
        record(breaker, 114.0, True, ms=15_000.0)
    assert State.CLOSED is breaker.state
    for _ in range(10):
        record(breaker, 126.0, True, ms=15_000.0)
    assert State.OPEN is breaker.state


def test_core_calls_may_use_the_last_lane() -> None:
    """BREAK-5: an open lane that is the last usable one takes `core` calls; others get their fallback."""
    breaker = opened()
    assert PASS is breaker.admit(101.0, priority="core", last_usable=True)
    assert isinstance(breaker.admit(101.0, priority="normal", last_usable=True), Refused)
    assert isinstance(breaker.admit(101.0, priority="core"), Refused)
    record(breaker, 101.0)
    assert State.OPEN is breaker.state


def test_a_probe_is_no_call_of_the_window() -> None:
    """BREAK-3: probes are judged as such; reported again after the closing, they speak against nobody."""
    breaker = opened()
    permit = breaker.admit(110.0)
    record(breaker, 110.1, permit=permit)
    for _ in range(20):
        record(breaker, 111.0, True, permit=permit)
    assert (State.CLOSED, 0) == (breaker.state, breaker._window.calls)


def test_a_permit_ends_with_its_round() -> None:
    """BREAK-3: a probe of a call without a deadline holds its place no longer than the round lasts."""
    permit = opened().admit(110.0)
    assert isinstance(permit, Permit)
    assert 140.0 == permit.expires_at


def test_what_led_to_opening_is_not_learned() -> None:
    """BREAK-1: latencies gathered before a lane opened do not become its usual pace afterwards."""
    breaker = Breaker()
    feed(breaker, 100.0, (99, False), (50, True))
    assert State.OPEN is breaker.state
    probe(breaker, breaker.open_until)
    feed(breaker, 130.0, (99, False))
    assert None is breaker.usual_p99_ms
    feed(breaker, 130.0, (1, False))
    assert 10.0 == pytest.approx(breaker.usual_p99_ms, rel=0.06)


# ------------------------------------------------------------------------------------------------ operators


def test_forced_open_refuses_until_told_otherwise() -> None:
    """BREAK-4: an operator's word holds against time, prober, supervisor and the panic rule."""
    breaker = Breaker()
    breaker.force_open(why="the bank is migrating")
    breaker.probed(1.0, ok=True)
    breaker.trip(2.0, why="other", jitter=JITTER)
    verdict = breaker.admit(1e6, priority="core", last_usable=True)
    assert Refused(None, "the bank is migrating") == verdict
    breaker.enable(1e6)
    assert (State.CLOSED, PASS) == (breaker.state, breaker.admit(1e6))


def test_forced_closed_starts_anew() -> None:
    """BREAK-4: an operator's closing forgets the row of openings and what the window held."""
    breaker = opened()
    breaker.force_close(101.0)
    assert (State.CLOSED, 0, None) == (breaker.state, breaker.opened_in_a_row, breaker.why)
    feed(breaker, 102.0, (9, True))
    breaker.force_close(103.0)
    feed(breaker, 104.0, (9, True))
    assert State.CLOSED is breaker.state


def test_a_disabled_breaker_judges_nothing() -> None:
    """BREAK-4: disabled, everything passes and nothing is held against the lane; enabled, it starts anew."""
    breaker = opened()
    breaker.disable()
    feed(breaker, 101.0, (50, True))
    breaker.trip(102.0, why="other", jitter=JITTER)
    assert (State.DISABLED, True, PASS) == (breaker.state, breaker.closed, breaker.admit(102.0))
    breaker.enable(103.0)
    feed(breaker, 104.0, (9, True))
    assert State.CLOSED is breaker.state


def test_saying_it_twice_changes_nothing() -> None:
    """BREAK-4: operators may repeat themselves."""
    breaker = Breaker()
    breaker.enable(0.0)
    for command in (breaker.force_open, breaker.force_open, breaker.disable, breaker.disable):
        command()
    assert State.DISABLED is breaker.state


@pytest.mark.parametrize(
    ("here", "to"), [(a, b) for a, b in itertools.product(State, State) if b not in MOVES[a]]
)
def test_an_illegal_move_raises(here: State, to: State) -> None:
    """A move that the table does not hold is a fault, told with what the table does hold."""
    breaker = Breaker()
    breaker.state = here
    with pytest.raises(RuntimeError, match=f"{here} becomes .*, not {to}"):
        breaker._move(to)
    assert here is breaker.state


def test_the_table_knows_every_state() -> None:
    """Every state has its moves, and each can be reached and left."""
    assert set(State) == set(MOVES)
    assert set(State) == set().union(*MOVES.values())
    assert all(MOVES.values())


# ------------------------------------------------------------------------------------------------ the rest


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("failure_rate_threshold", 0),
        ("slow_call_rate_threshold", 1.5),
        ("minimum_calls", -1),
        ("slow_ms", math.nan),
        ("wait_in_open_s", math.inf),
        ("wait_jitter", 1.0),
        ("fast_window_s", 61.0),
    ],
)
def test_settings_that_make_no_sense_are_refused(field: str, value: float) -> None:
    """A setting out of its range is named, with what it should be."""
    with pytest.raises(ValueError, match=field):
        BreakerSettings(**{field: value})


def test_the_page_has_the_numbers() -> None:
    """The reference page on breakers lists every setting with its default."""
    page = (Path(__file__).parents[2] / "docs/reference/breakers.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| ([^|`]+) \|$", page.partition("## The numbers")[2], re.MULTILINE)
    defaults = BreakerSettings()
    assert [(field.name, str(getattr(defaults, field.name))) for field in fields(defaults)] == listed


def test_a_lane_at_rest_says_so() -> None:
    """A lane without a judged call for a minute has given its buckets back."""
    breaker = Breaker()
    record(breaker, 1.0)
    record(breaker, 2.0)
    assert (False, True) == (breaker.rest(60.9), breaker.rest(62.0))
    assert None is breaker._window._ring
