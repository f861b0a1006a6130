"""Our numbers in Prometheus's form, made when somebody asks for them.

`prometheus_client` is imported here and nowhere else: it is the slow part of starting, and a process that
nobody scrapes never needs it.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from reach.observe.metrics import PROCESS, Counter, Histogram, Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""What `exposed` gives, as an HTTP header says it."""


class MetricsCollector(Collector):
    """Hands our families to any registry of prometheus_client: `registry.register(MetricsCollector())`."""

    def __init__(self, metrics: Metrics = PROCESS) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Give every family with what it holds now."""
        for family in self._metrics.families:
            yield _histogram(family) if isinstance(family, Histogram) else _numbers(family)

    def describe(self) -> Iterator[Metric]:
        """Give every family without its numbers, so that registering does not collect."""
        for family in self._metrics.families:
            yield Metric(family.name, family.help_text, family.kind)


def exposed(metrics: Metrics = PROCESS) -> bytes:
    """Give the text that Prometheus scrapes."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MetricsCollector(metrics))
    return generate_latest(registry)


def _numbers(family: Counter) -> Metric:
    shape = GaugeMetricFamily if family.kind == "gauge" else CounterMetricFamily
    metric = shape(family.name, family.help_text, labels=family.labels)
    for key, value in family.samples():
        metric.add_metric(list(key), value)
    return metric


def _histogram(family: Histogram) -> Metric:
    metric = HistogramMetricFamily(family.name, family.help_text, labels=family.labels)
    bounds = [*(repr(bound) for bound in family.bounds), "+Inf"]
    for key, counts, total in family.samples():
        buckets = [(bound, float(count)) for bound, count in zip(bounds, counts, strict=True)]
        metric.add_metric(list(key), buckets, total)
    return metric
