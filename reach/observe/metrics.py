"""Numbers of this process, counted in plain dictionaries (behaviour SEE-2).

A Prometheus client's own counters cost several microseconds a call, most of it in locks and label look-ups;
ours cost a dictionary access, and `reach.observe.exposition` turns them into Prometheus's form when somebody
asks. The number of label sets of each family is bounded: past it every label is `other`, so that a caller
who invents names cannot fill the memory. Counting is for one thread at a time (the event loop's); a second
one may cost a count now and then, never more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Final
from weakref import WeakMethod

from reach.faults import Reason
from reach.wire.reply import Failure

BUCKETS_S: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.2,
    0.4,
    0.8,
    1.6,
    3.2,
)
"""Upper bounds of the latency buckets in seconds: 0.05 to 3.2 doubled, and finer below (SEE-2)."""

LONG_BUCKETS_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""For whole streams, which may run for minutes."""

LABEL_SETS: Final = 2_000
"""How many label sets a family keeps apart."""

OTHER: Final = "other"
"""Every label's value once a family is full."""

_MAX_LABEL_CHARS: Final = 120

Source = Callable[[], Iterable[tuple[tuple[str, ...], float]]]
"""Says how much something is now, by label values."""


class Family:
    """A name with its labels: what all kinds of numbers have in common. `add` and its like are in the kinds."""

    kind = ""

    def __init__(
        self, name: str, help_text: str, labels: tuple[str, ...], *, limit: int = LABEL_SETS
    ) -> None:
        self.name = name
        self.help_text = help_text
        self.labels = labels
        self._limit = limit

    def _bounded(self, key: tuple[str, ...], held: int) -> tuple[str, ...]:
        """Give the key under which a label set that is new here is kept, `held` being there already."""
        if len(key) != len(self.labels):
            raise TypeError(f"{self.name} has the labels {', '.join(self.labels) or '(none)'}, not {key!r}")
        if held >= self._limit:
            return (OTHER,) * len(key)
        return tuple(str(value)[:_MAX_LABEL_CHARS] for value in key)


class Cell:
    """The count of one label set of a counter; `n` may be added to directly."""

    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n: float = 0


class Counter(Family):
    """Something that only grows."""

    kind = "counter"

    def __init__(self, name: str, help_text: str, *labels: str, limit: int = LABEL_SETS) -> None:
        super().__init__(name, help_text, labels, limit=limit)
        self._cells: dict[tuple[str, ...], Cell] = {}

    def cell(self, *key: str) -> Cell:
        """Give the count of the label values `key`, for those who count them often."""
        cell = self._cells.get(key)
        if cell is None:
            key = self._bounded(key, len(self._cells))
            cell = self._cells.setdefault(key, Cell())
        return cell

    def add(self, *key: str, by: float = 1) -> None:
        """Count `by` more under the label values `key`."""
        cell = self._cells.get(key) or self.cell(*key)
        cell.n += by

    def value(self, *key: str) -> float:
        """What was counted under `key`."""
        cell = self._cells.get(key)
        return 0 if cell is None else cell.n

    def samples(self) -> list[tuple[tuple[str, ...], float]]:
        """Every label set with its count, for an exporter; a copy. One that was never counted is left out."""
        return [(key, cell.n) for key, cell in self._cells.copy().items()]


class Gauge(Counter):
    """Something that goes up and down: what was said last, or what `follow`ed sources say when somebody looks."""

    kind = "gauge"

    def __init__(self, name: str, help_text: str, *labels: str, limit: int = LABEL_SETS) -> None:
        super().__init__(name, help_text, *labels, limit=limit)
        self._sources: list[WeakMethod[Source]] = []

    def follow(self, source: Source) -> None:
        """Ask `source`, a method, whenever somebody looks, as long as its object lives; what several say is added."""
        self._sources.append(WeakMethod(source))

    def samples(self) -> list[tuple[tuple[str, ...], float]]:
        """Every label set with how much it is now."""
        said = dict(super().samples())
        self._sources = [ref for ref in self._sources if ref() is not None]
        for ref in self._sources:
            source = ref()
            for key, value in source() if source is not None else ():
                known = key if key in said else self._bounded(key, len(said))
                said[known] = said.get(known, 0) + value
        return list(said.items())

    def set(self, value: float, *key: str) -> None:
        """Say how much it is now."""
        self.cell(*key).n = value


class Spread:
    """Counts by bucket (the last is everything above) and their sum, of one label set of a histogram."""

    __slots__ = ("counts", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * (buckets + 1)
        self.total = 0.0


class Histogram(Family):
    """How values spread over buckets. `bounds` are upper bounds, in ascending order."""

    kind = "histogram"

    def __init__(
        self,
        name: str,
        help_text: str,
        *labels: str,
        bounds: tuple[float, ...] = BUCKETS_S,
        limit: int = LABEL_SETS,
    ) -> None:
        super().__init__(name, help_text, labels, limit=limit)
        self.bounds = bounds
        self._spreads: dict[tuple[str, ...], Spread] = {}

    def observe(self, value: float, *key: str) -> None:
        """Count one `value` under the label values `key`."""
        spread = self._spreads.get(key) or self.spread(*key)
        spread.counts[bisect_left(self.bounds, value)] += 1
        spread.total += value

    def spread(self, *key: str) -> Spread:
        """Give the counts of the label values `key`, for those who observe them often."""
        spread = self._spreads.get(key)
        if spread is None:
            key = self._bounded(key, len(self._spreads))
            spread = self._spreads.setdefault(key, Spread(len(self.bounds)))
        return spread

    def samples(self) -> list[tuple[tuple[str, ...], list[int], float]]:
        """Every label set with its cumulative counts (the last is all) and its sum; a copy."""
        return [
            (key, list(accumulate(spread.counts)), spread.total)
            for key, spread in self._spreads.copy().items()
        ]


class Tally:
    """What is counted of the good calls of one provider of a capability: most calls, so they look up nothing else."""

    __slots__ = ("attempts", "calls", "latency")

    def __init__(self, calls: Cell, attempts: Cell, latency: Spread) -> None:
        self.calls = calls
        self.attempts = attempts
        self.latency = latency

    def good(self, latency_ms: float) -> None:
        """Count a call that ended in its result, at the end of an attempt that was counted already."""
        self.calls.n += 1
        latency_s = latency_ms / 1000
        self.latency.counts[bisect_left(BUCKETS_S, latency_s)] += 1
        self.latency.total += latency_s


def result_of(failure: Failure | None) -> str:
    """Give the `result` label of an outcome: `ok`, `cancelled`, or the failure's code."""
    if failure is None:
        return "ok"
    return "cancelled" if failure.reason is Reason.CANCELLED else failure.code.value


class Metrics:
    """The families that every process has; `families` also holds what later rooms `add`.

    `side` is `caller` (`bus.request` and its like) or `agent` (handlers); `result` is `ok`, `cancelled` or
    the code; `why` is the word of `reach.policy.retry.Why`.
    """

    def __init__(self) -> None:
        self.calls = Counter("reach_calls", "Calls that ended.", "capability", "provider", "result")
        self.latency = Histogram(
            "reach_call_seconds", "Time of a whole call, as its caller saw it.", "capability", "provider"
        )
        self.attempts = Counter("reach_attempts", "Tries of calls.", "capability", "provider", "result")
        self.retries_refused = Counter(
            "reach_retries_refused", "Failures that were not followed by another try.", "capability", "why"
        )
        self.inflight = Gauge("reach_inflight", "Calls under way.", "capability", "side")
        self.queue_depth = Gauge("reach_queue_depth", "Requests that wait for a place.", "capability")
        self.first_byte = Histogram(
            "reach_first_byte_seconds", "Time to a stream's first frame.", "capability"
        )
        self.stream_duration = Histogram(
            "reach_stream_seconds", "Time of a whole stream.", "capability", bounds=LONG_BUCKETS_S
        )
        self.served = Counter("reach_served", "Requests that an agent answered.", "capability", "result")
        self.served_latency = Histogram("reach_served_seconds", "Time of a handler.", "capability")
        self.route_failures = Counter(
            "reach_route_failures", "Calls for which no lane was found.", "capability"
        )
        self.breaker_open = Gauge(
            "reach_breaker_open",
            "1 while a lane's breaker keeps calls away from it.",
            "capability",
            "provider",
        )
        self.table_age = Gauge(
            "reach_table_age_seconds", "Since the routing table was last known to be the leader's."
        )
        self.quota_refused = Counter(
            "reach_quota_refused",
            "Calls refused since all callers together had taken the limit.",
            "capability",
            "limit",
        )
        self.quota_local = Counter(
            "reach_quota_local",
            "Calls let in by the process's own share: callers could not be counted together.",
            "capability",
        )
        self.budget_refused = Counter(
            "reach_budget_refused", "Calls refused since a budget was spent.", "capability", "budget"
        )
        self.cache = Counter(
            "reach_cache", "Calls whose answer may be kept: hit, miss, or stale.", "capability", "outcome"
        )
        self.coalesced = Counter(
            "reach_coalesced", "Calls that an equal one under way answered.", "capability"
        )
        self.batched = Counter("reach_batched", "Calls that a batch answered.", "capability")
        self.links = Counter("reach_links", "Connections to NATS made, first ones included.")
        self.families: list[Counter | Histogram] = [
            self.calls,
            self.latency,
            self.attempts,
            self.retries_refused,
            self.inflight,
            self.queue_depth,
            self.first_byte,
            self.stream_duration,
            self.served,
            self.served_latency,
            self.route_failures,
            self.breaker_open,
            self.table_age,
            self.quota_refused,
            self.quota_local,
            self.budget_refused,
            self.cache,
            self.coalesced,
            self.batched,
            self.links,
        ]

    def tally(self, capability: str, provider: str | None) -> Tally:
        """Give the counts of the good calls of one lane."""
        lane = provider or "none"
        return Tally(
            self.calls.cell(capability, lane, "ok"),
            self.attempts.cell(capability, lane, "ok"),
            self.latency.spread(capability, lane),
        )

    def served_tally(self, capability: str) -> Tally:
        """Give the counts of the requests that an agent answered well."""
        answered = self.served.cell(capability, "ok")
        return Tally(answered, answered, self.served_latency.spread(capability))

    def call_finished(
        self, capability: str, provider: str | None, failure: Failure | None, latency_ms: float
    ) -> None:
        """Count a call that ended; without a `provider` (nobody took it) the label is `none`."""
        lane = provider or "none"
        self.calls.add(capability, lane, result_of(failure))
        self.latency.observe(latency_ms / 1000, capability, lane)

    def attempt_finished(self, capability: str, provider: str | None, failure: Failure | None) -> None:
        """Count one try of a call."""
        self.attempts.add(capability, provider or "none", result_of(failure))

    def request_served(self, capability: str, failure: Failure | None, took_ms: float) -> None:
        """Count a request that an agent answered."""
        self.served.add(capability, result_of(failure))
        self.served_latency.observe(took_ms / 1000, capability)

    def add(self, family: Counter | Histogram) -> None:
        """Have one more family. Raises `ValueError` when its name is taken."""
        if any(family.name == other.name for other in self.families):
            raise ValueError(f"there is a family {family.name} already; names of metrics are unique")
        self.families.append(family)


PROCESS: Final = Metrics()
"""The numbers of this process: what `/metrics` shows unless somebody keeps their own."""
