"""Counting (SEE-2): cheap, bounded, and in Prometheus's form when asked."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from reach.faults import Reason
from reach.observe.exposition import CONTENT_TYPE, MetricsCollector, exposed
from reach.observe.metrics import BUCKETS_S, OTHER, Counter, Gauge, Histogram, Metrics, result_of
from reach.wire.reply import Failure


def scraped(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by name and labels, read back by Prometheus's own parser."""
    families = text_string_to_metric_families(exposed(metrics).decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_calls_are_counted_by_result() -> None:
    """SEE-2: calls by capability, provider and result, and their latencies."""
    metrics = Metrics()
    metrics.call_finished("invoice.extract", "extractor", None, 30.0)
    metrics.call_finished("invoice.extract", "extractor", None, 5_000.0)
    metrics.call_finished("invoice.extract", None, Failure.of(Reason.NO_RESPONDERS), 1.0)
    metrics.call_finished("invoice.extract", "extractor", Failure.of(Reason.CANCELLED), 1.0)
    got = scraped(metrics)
    lane = (("capability", "invoice.extract"), ("provider", "extractor"))
    assert 2 == got["reach_calls_total", (*lane, ("result", "ok"))]
    assert 1 == got["reach_calls_total", (*lane, ("result", "cancelled"))]
    nobody = (("capability", "invoice.extract"), ("provider", "none"), ("result", "CONN_REFUSED"))
    assert 1 == got["reach_calls_total", nobody]
    buckets = [
        got["reach_call_seconds_bucket", tuple(sorted((*lane, ("le", le))))] for le in ("0.025", "0.05")
    ]
    assert [1, 2] == buckets
    assert 3 == got["reach_call_seconds_bucket", tuple(sorted((*lane, ("le", "+Inf"))))]
    assert 5.031 == pytest.approx(got["reach_call_seconds_sum", lane])


def test_buckets_double_from_50_ms_and_are_finer_below() -> None:
    """SEE-2: the bounds."""
    assert (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2) == BUCKETS_S[-7:]
    assert (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025) == BUCKETS_S[:-7]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (None, "ok"),
        (Failure.of(Reason.DEADLINE), "TIMEOUT"),
        (Failure.of(Reason.CANCELLED), "cancelled"),
        (Failure.of(Reason.OUTCOME_UNKNOWN), "UNKNOWN"),
    ],
)
def test_results_are_few(failure: Failure | None, expected: str) -> None:
    """SEE-2: the result label is `ok`, `cancelled` or one of the seven codes."""
    assert expected == result_of(failure)


@pytest.mark.parametrize("kind", [Counter, Gauge, Histogram])
def test_label_sets_are_bounded(kind: type[Counter | Histogram]) -> None:
    """SEE-2: invented names cannot fill the memory: past the limit all labels are `other`."""
    family = kind("reach_x", "X.", "capability", "result", limit=3)
    for number in range(10):
        if isinstance(family, Histogram):
            family.observe(0.1, f"c{number}", "ok")
        else:
            family.add(f"c{number}", "ok")
    samples = family.samples()
    assert 4 == len(samples)
    assert (OTHER, OTHER) == samples[-1][0]
    last = samples[-1][1]
    assert 7 == (last[-1] if isinstance(last, list) else last)


def test_long_label_values_are_cut() -> None:
    """SEE-2: a label value of any length takes at most 120 characters."""
    counter = Counter("reach_x", "X.", "capability")
    counter.add("c" * 10_000)
    counter.add("c" * 10_000)
    assert [(("c" * 120,), 2)] == counter.samples()


def test_labels_must_fit_the_family() -> None:
    """A call with too few or too many labels is a programming error that names the labels."""
    with pytest.raises(TypeError, match="reach_x has the labels capability, result, not"):
        Counter("reach_x", "X.", "capability", "result").add("only one")


def test_gauges_go_up_and_down() -> None:
    """SEE-2: calls under way and queues are gauges."""
    metrics = Metrics()
    metrics.inflight.add("invoice.extract", "caller", by=2)
    metrics.inflight.add("invoice.extract", "caller", by=-1)
    metrics.queue_depth.set(7, "invoice.extract")
    got = scraped(metrics)
    assert 1 == got["reach_inflight", (("capability", "invoice.extract"), ("side", "caller"))]
    assert 7 == got["reach_queue_depth", (("capability", "invoice.extract"),)]


def test_later_rooms_add_families() -> None:
    """Families are added by name, once, and appear beside the others, labels or none."""
    metrics = Metrics()
    opened = Counter("reach_breaker_opened", "Breakers that opened.")
    metrics.add(opened)
    opened.add()
    assert 1 == scraped(metrics)["reach_breaker_opened_total", ()]
    with pytest.raises(ValueError, match="a family reach_breaker_opened already"):
        metrics.add(Counter("reach_breaker_opened", "Again."))


def test_any_registry_takes_the_collector() -> None:
    """A process that has a registry of its own puts our numbers beside its own, without collecting first."""
    registry = CollectorRegistry(auto_describe=True)
    metrics = Metrics()
    registry.register(MetricsCollector(metrics))
    metrics.links.add()
    assert 1 == registry.get_sample_value("reach_links_total")
    assert CONTENT_TYPE.startswith("text/plain; version=")


def test_names_are_well_formed_and_distinct() -> None:
    """Every family has its own name, which starts with `reach_`, and an explanation."""
    families = Metrics().families
    assert len(families) == len({family.name for family in families})
    assert [] == [
        f.name for f in families if not f.name.startswith("reach_") or not f.help_text.endswith(".")
    ]


@given(st.lists(st.floats(min_value=0.0, max_value=10.0), max_size=50))
def test_a_histogram_agrees_with_counting(values: list[float]) -> None:
    """Cumulative counts are how many values are at or below each bound; the last is all of them."""
    histogram = Histogram("reach_x", "X.", "capability")
    for value in values:
        histogram.observe(value, "c")
    for _, counts, total in histogram.samples():
        assert [sum(value <= bound for value in values) for bound in BUCKETS_S] == counts[:-1]
        assert len(values) == counts[-1]
        assert sum(values) == pytest.approx(total)


class Places:
    """Something whose numbers are asked for."""

    def __init__(self, taken: float) -> None:
        self.taken = taken

    def now(self) -> list[tuple[tuple[str, ...], float]]:
        """What it has."""
        return [(("invoice.extract", "agent"), self.taken)]


def test_a_gauge_asks_its_sources_when_somebody_looks() -> None:
    """SEE-2: what is under way costs nothing to count; several sources add up, and one that is gone says nothing."""
    metrics = Metrics()
    one, two = Places(2), Places(3)
    for places in (one, two):
        metrics.inflight.follow(places.now)
    key = ("reach_inflight", (("capability", "invoice.extract"), ("side", "agent")))
    assert 5 == scraped(metrics)[key]
    one.taken = 7
    assert 10 == scraped(metrics)[key]
    del two, places
    gc.collect()
    assert 7 == scraped(metrics)[key]


def test_a_gauge_that_follows_is_bounded_too() -> None:
    """SEE-2: sources that invent names end up under one label."""
    gauge = Gauge("some", "Some.", "capability", "side", limit=1)
    gauge.set(1, "a", "agent")
    places = Places(4)
    gauge.follow(places.now)
    assert [(("a", "agent"), 1), ((OTHER, OTHER), 4)] == gauge.samples()
