"""Everybody's outcomes added up: figures, instances that fail alone, breakers that open in time."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.supervisor.outcomes import Ledger, Spans, Tally
from actors.supervisor.verdicts import Verdicts
from reach.policy.breaker_state import State
from reach.policy.sketch import Sketch
from reach.wire.outcomes import InstanceOutcomes, LaneOutcomes, LatencySketch, Outcomes
from reach.wire.route import Breaker

LANE = ("reader", "job.do")


def lane(ok: int = 0, failed: int = 0, *, ms: float = 5.0, **fields: Any) -> LaneOutcomes:
    sketch = Sketch()
    for _ in range(ok):
        sketch.add(ms)
    latency = LatencySketch(**sketch.to_map())
    return LaneOutcomes(
        provider="reader", capability="job.do", ok=ok, failed=failed, latency=latency, **fields
    )


def digest(*lanes: LaneOutcomes, client: str = "c", boot: int = 1, seq: int = 1) -> Outcomes:
    return Outcomes(client=client, boot=boot, seq=seq, at=1, span_ms=1000, lanes=lanes)


def test_figures_are_of_all_callers_together() -> None:
    """Counts are summed and latencies merged: the P99 of two callers is that of all their calls."""
    ledger = Ledger()
    ledger.take(digest(lane(ok=90, ms=10.0), client="a"), 100.0)
    ledger.take(digest(lane(ok=8, failed=2, ms=500.0, cost=1.0), client="b"), 100.0)
    book = ledger.book(*LANE)
    assert book is not None
    figures = book.figures(101.0)
    assert (100, 0.98, 0.01) == (figures.calls, figures.success, figures.cost)
    assert figures.p50_ms == pytest.approx(10, rel=0.06)
    assert figures.p99_ms == pytest.approx(500, rel=0.06)


@pytest.mark.parametrize(
    ("boot", "seq", "counted"), [(1, 2, True), (1, 1, False), (1, 0, False), (2, 1, True), (0, 9, False)]
)
def test_a_digest_counts_once(boot: int, seq: int, counted: bool) -> None:
    """A client's digests are numbered in each of its runs; one that comes twice, or late, counts for nothing."""
    ledger = Ledger()
    ledger.take(digest(lane(ok=1)), 100.0)
    assert counted == (ledger.take(digest(lane(ok=1), boot=boot, seq=seq), 100.0) is not None)


def test_what_is_old_is_forgotten() -> None:
    """Five minutes later nothing of a burst is left in the figures, an hour later nothing in the hour's P99."""
    ledger = Ledger()
    ledger.take(digest(lane(ok=50, failed=50, ms=100.0)), 0.0)
    book = ledger.book(*LANE)
    assert book is not None
    assert (0, None, None) == (
        book.figures(331.0).calls,
        book.figures(331.0).success,
        book.figures(331.0).p99_ms,
    )
    assert book.figures(331.0).p99_hour_ms is not None
    assert None is book.figures(3901.0).p99_hour_ms
    assert 0.5 == book.success_24h(3901.0)


def test_a_sketch_of_another_resolution_costs_only_itself() -> None:
    """Counts of a digest whose sketch cannot be read still count."""
    ledger = Ledger()
    odd = lane(ok=5).model_copy(update={"latency": LatencySketch(e=1.0, i=0, n=(1,))})
    ledger.take(digest(odd), 0.0)
    book = ledger.book(*LANE)
    assert book is not None
    assert (5, 1, None) == (book.figures(1.0).calls, ledger.garbage, book.figures(1.0).p99_ms)


@pytest.mark.parametrize(
    ("calls", "failed", "others", "bad", "failing"),
    [
        (30, 10, 60, 0, True),
        (30, 9, 60, 0, False),
        (19, 19, 60, 0, False),
        (30, 30, 60, 12, False),
        (30, 30, 10, 0, False),
    ],
)
def test_an_instance_fails_when_it_alone_does(
    calls: int, failed: int, others: int, bad: int, failing: bool
) -> None:
    """Case 8: over 30 % of at least 20 calls, while its neighbours stay under half of that."""
    ledger = Ledger()
    told = (
        InstanceOutcomes(instance="a", calls=calls, failed=failed),
        InstanceOutcomes(instance="b", calls=others, failed=bad),
    )
    ledger.take(digest(lane(ok=1, instances=told)), 0.0)
    book = ledger.book(*LANE)
    assert book is not None
    assert (["a"] if failing else []) == list(book.failing(1.0))


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 5)), max_size=60))
def test_a_span_holds_what_its_steps_can_tell(moves: list[tuple[float, int]]) -> None:
    """It holds everything of the span, and nothing that is older than the span and one step."""
    spans: Spans[Tally] = Spans(Tally, (60.0, 10.0))
    now, told = 0.0, []
    for pause, calls in moves:
        now += pause
        spans.at(now).calls += calls
        told.append((now, calls))
        held = sum(step.calls for step in spans.all(now))
        assert sum(calls for at, calls in told if at > now - 60) <= held
        assert held <= sum(calls for at, calls in told if at > now - 70)


class Traffic:
    """A lane with so many calls a second, told by so many callers once a second."""

    def __init__(self, *, per_s: int, callers: int = 3) -> None:
        self.random = Random(7)
        self.verdicts = Verdicts(self.random.random)
        self.per_s, self.callers = per_s, callers
        self.now = 1000.0

    @property
    def state(self) -> State:
        return self.verdicts.breaker(LANE).state

    def second(self, *, failing: float = 0.0, ms: float = 5.0) -> None:
        for _ in range(self.callers):
            self.now += 1 / self.callers
            calls = self.per_s // self.callers
            failed = sum(self.random.random() < failing for _ in range(calls))
            told = lane(
                ok=calls - failed, failed=failed, ms=ms, failed_in_a_row=failed if failing == 1 else 0
            )
            latency = Sketch.from_map(told.latency.model_dump()) if told.latency else Sketch()
            self.verdicts.feed(told, latency, span_s=1.0, now=self.now)
            self.verdicts.turn(self.now)

    def seconds_until(self, state: State, **traffic: float) -> int:
        for second in range(1, 60):
            self.second(**traffic)
            if self.state is state:
                return second
        raise AssertionError(f"not {state} after a minute")


@pytest.mark.parametrize(("failing", "within_s"), [(1.0, 2), (0.6, 6), (0.4, 30)])
def test_failures_open_a_lane_for_everybody_in_time(failing: float, within_s: int) -> None:
    """BREAK-1: after a healthy minute at 100 calls a second, 60 % of failures open it within 6 s."""
    traffic = Traffic(per_s=99)
    for _ in range(60):
        traffic.second()
    assert traffic.seconds_until(State.OPEN, failing=failing) <= within_s


def test_a_lane_that_has_become_slow_opens() -> None:
    """BREAK-1: once the usual pace is known, answers of a second instead of 5 ms open the lane within 10 s."""
    traffic = Traffic(per_s=99)
    for _ in range(90):
        traffic.second()
    assert traffic.seconds_until(State.OPEN, ms=1000.0) <= 10


def test_a_few_failures_open_nothing() -> None:
    """5 % of failures for two minutes are nothing to open for."""
    traffic = Traffic(per_s=99)
    for _ in range(120):
        traffic.second(failing=0.05)
    assert State.CLOSED is traffic.state


def test_a_busy_lane_is_judged_by_a_sample() -> None:
    """Of 30 000 calls in a digest a few hundred are fed, of the same proportions: it opens, and quickly."""
    verdicts = Verdicts(lambda: 0.5)
    told = lane(failed=20_000).model_copy(update={"ok": 10_000})
    verdicts.feed(told, Sketch(), span_s=1.0, now=10.0)
    assert State.OPEN is verdicts.breaker(LANE).state


@pytest.mark.parametrize("state", ["open", "half_open", "forced_open", "disabled", "closed"])
def test_a_breaker_goes_on_from_the_table(state: Any) -> None:
    """LIFE-8: a new leader has the breaker in the state that the table shows, for as long as it says."""
    verdicts = Verdicts(lambda: 0.5)
    until = 1_000_000 + 5_000 if state == "open" else None
    verdicts.adopt(LANE, Breaker(state=state, until=until, opened_in_a_row=3), now=50.0, at_ms=1_000_000)
    verdicts.turn(50.0)
    told = verdicts.told(LANE, now=50.0, at_ms=1_000_000)
    assert (state, until) == (told.state, told.until)
    if state in {"open", "half_open"}:
        assert 3 == told.opened_in_a_row
