"""What all callers together saw of each lane: their digests added up (behaviour BREAK-4, ROUTE-2).

A digest is a difference, numbered by its client, and counts once however often it is delivered. Counts are summed;
latencies are merged as sketches, since an average of percentiles is none. Each lane keeps:

================  ===========================  =============================================================
figure            over                         in steps of
================  ===========================  =============================================================
success, cost     5 min                        30 s
P50, P95, P99     5 min                        30 s
P99 of the hour   1 h                          5 min
success           24 h                         1 h
an instance       1 min                        10 s
================  ===========================  =============================================================

An instance *fails* when, of at least 20 calls in a minute, more than 30 % failed, while the others of its lane
stay under half of that: then it is it, and not the provider.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from reach.policy.sketch import Sketch
from reach.wire.outcomes import LaneOutcomes, Outcomes
from reach.wire.route import Figures
from reach.wire.whole import MAX_WHOLE

SHORT_S: Final = (300.0, 30.0)
HOUR_S: Final = (3600.0, 300.0)
DAY_S: Final = (86_400.0, 3600.0)
MINUTE_S: Final = (60.0, 10.0)
"""(span, step) in seconds."""

FAILING_CALLS: Final = 20
FAILING_RATE: Final = 0.30
"""The breaker's numbers (BREAK-1), for one instance."""

MAX_CLIENTS: Final = 20_000
"""Clients whose last digest is remembered; the one unheard for longest is forgotten first."""

S = TypeVar("S")


class Spans(Generic[S]):
    """What happened in the last `span_s` seconds, kept in steps; each step is one `S`."""

    __slots__ = ("_make", "_span_s", "_step_s", "_steps")

    def __init__(self, make: Callable[[], S], times: tuple[float, float]) -> None:
        self._make = make
        self._span_s, self._step_s = times
        self._steps: deque[tuple[float, S]] = deque()

    def at(self, now: float) -> S:
        """Give the step that `now` falls into."""
        if not self._steps or now >= self._steps[-1][0] + self._step_s:
            self._steps.append((now // self._step_s * self._step_s, self._make()))
            self._trim(now)
        return self._steps[-1][1]

    def all(self, now: float) -> Iterable[S]:
        """Give the steps of the whole span, oldest first."""
        self._trim(now)
        return (step for _, step in self._steps)

    def _trim(self, now: float) -> None:
        while self._steps and self._steps[0][0] + self._step_s <= now - self._span_s:
            self._steps.popleft()


@dataclass(slots=True)
class Tally:
    """Calls that count."""

    calls: int = 0
    failed: int = 0
    cost: float = 0.0


def _total(spans: Spans[Tally], now: float) -> Tally:
    found = Tally()
    for step in spans.all(now):
        found.calls += step.calls
        found.failed += step.failed
        found.cost += step.cost
    return found


def _merged(spans: Spans[Sketch], now: float) -> Sketch:
    found = Sketch()
    for step in spans.all(now):
        found.merge(step)
    return found


class LaneBook:
    """Everything that was told of one lane."""

    __slots__ = ("_day", "_hour", "_instances", "_latencies", "_minute", "_short", "told_at")

    def __init__(self) -> None:
        self._short: Spans[Tally] = Spans(Tally, SHORT_S)
        self._day: Spans[Tally] = Spans(Tally, DAY_S)
        self._latencies: Spans[Sketch] = Spans(Sketch, SHORT_S)
        self._hour: Spans[Sketch] = Spans(Sketch, HOUR_S)
        self._minute: Spans[Tally] = Spans(Tally, MINUTE_S)
        self._instances: dict[str, Spans[Tally]] = {}
        self.told_at = 0.0

    def add(self, told: LaneOutcomes, latencies: Sketch, now: float) -> None:
        """Take one digest's part in."""
        self.told_at = now
        for spans in (self._short, self._minute, self._day):
            step = spans.at(now)
            step.calls += told.counted
            step.failed += told.failed
            step.cost += told.cost
        if latencies.count:
            self._latencies.at(now).merge(latencies)
            self._hour.at(now).merge(latencies)
        for one in told.instances:
            step = self._instances.setdefault(one.instance, Spans(Tally, MINUTE_S)).at(now)
            step.calls += one.calls
            step.failed += min(one.failed, one.calls)

    def figures(self, now: float) -> Figures:
        """Give the lane's figures as the table tells them; `usual_p99_ms` is the breaker's to add."""
        tally, sketch = _total(self._short, now), _merged(self._latencies, now)
        return Figures(
            calls=min(tally.calls, MAX_WHOLE),
            success=1 - tally.failed / tally.calls if tally.calls else None,
            p50_ms=sketch.quantile(0.5),
            p95_ms=sketch.quantile(0.95),
            p99_ms=sketch.quantile(0.99),
            p99_hour_ms=_merged(self._hour, now).quantile(0.99),
            cost=tally.cost / tally.calls if tally.calls else None,
        )

    def success_24h(self, now: float) -> float | None:
        """Give the share of successes of the last day; None without calls."""
        tally = _total(self._day, now)
        return 1 - tally.failed / tally.calls if tally.calls else None

    def by_instance(self, now: float) -> tuple[dict[str, int], int]:
        """Give the calls of the last minute of the instances that are told apart, and of the whole lane."""
        told = {name: _total(spans, now).calls for name, spans in self._instances.items()}
        return told, _total(self._minute, now).calls

    def failing(self, now: float) -> dict[str, str]:
        """Give the instances that fail while their neighbours do not, and what to say of each."""
        tallies = {name: _total(spans, now) for name, spans in list(self._instances.items())}
        for name, tally in tallies.items():
            if not tally.calls:
                del self._instances[name]
        calls = sum(tally.calls for tally in tallies.values())
        failed = sum(tally.failed for tally in tallies.values())
        found = {}
        for name, tally in tallies.items():
            if tally.calls < FAILING_CALLS or tally.failed <= tally.calls * FAILING_RATE:
                continue
            others, bad = calls - tally.calls, failed - tally.failed
            if others >= FAILING_CALLS and bad < others * FAILING_RATE / 2:
                found[name] = f"{tally.failed} of its {tally.calls} calls of a minute failed"
        return found


@dataclass(slots=True)
class Digest:
    """One client's digest, read and new: for each lane what was told, and its latencies."""

    lanes: list[tuple[LaneOutcomes, Sketch]] = field(default_factory=list)
    span_s: float = 1.0


class Ledger:
    """The books of all lanes."""

    def __init__(self) -> None:
        self._books: dict[tuple[str, str], LaneBook] = {}
        self._clients: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self.garbage = 0
        """Sketches that could not be read."""

    def book(self, provider: str, capability: str) -> LaneBook | None:
        """Give a lane's book; None where nothing was told of it."""
        return self._books.get((provider, capability))

    def take(self, told: Outcomes, now: float) -> Digest | None:
        """Add a digest up; None for one that was counted before, or that is older than one that was."""
        if self._clients.get(told.client, (-1, -1)) >= (told.boot, told.seq):
            return None
        self._clients[told.client] = (told.boot, told.seq)
        self._clients.move_to_end(told.client)
        if len(self._clients) > MAX_CLIENTS:
            self._clients.popitem(last=False)
        digest = Digest(span_s=told.span_ms / 1000)
        for lane in told.lanes:
            latencies = self._sketch(lane)
            self._books.setdefault((lane.provider, lane.capability), LaneBook()).add(lane, latencies, now)
            digest.lanes.append((lane, latencies))
        return digest

    def forget(self, provider: str, capability: str) -> None:
        """Drop the book of a lane that is gone."""
        self._books.pop((provider, capability), None)

    def _sketch(self, lane: LaneOutcomes) -> Sketch:
        if lane.latency is None:
            return Sketch()
        try:
            return Sketch.from_map(lane.latency.model_dump())
        except ValueError:
            self.garbage += 1
            return Sketch()
