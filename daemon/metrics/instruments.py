"""Counters and gauges with the prefix of pagetier, and with at most two labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from pagetier.daemon.common.histogram import Histogram

PREFIX = "pagetier_"
ENGINE, MEMORY, DISK, REMOTE = "engine", "memory", "disk", "remote"
"""Values of labels for where pages are, come from and go."""

Numbers: TypeAlias = Mapping[str, float] | Mapping[tuple[str, str], float]
"""Numbers by the value of the one label, or by the values of both labels in their order."""


def counter(name: str, about: str, value: float) -> Metric:
    """Returns one number that only rises; `name` is without the suffix `_total`, which is added."""
    return CounterMetricFamily(PREFIX + name, about, value=value)


def counters(name: str, about: str, labels: Sequence[str], numbers: Numbers) -> Metric:
    """Returns numbers that only rise."""
    family = CounterMetricFamily(PREFIX + name, about, labels=labels)
    return _filled(family, numbers)


def gauge(name: str, about: str, value: float) -> Metric:
    """Returns one number that rises and falls."""
    return GaugeMetricFamily(PREFIX + name, about, value=value)


def gauges(name: str, about: str, labels: Sequence[str], numbers: Numbers) -> Metric:
    """Returns numbers that rise and fall."""
    family = GaugeMetricFamily(PREFIX + name, about, labels=labels)
    return _filled(family, numbers)


def histogram(name: str, about: str, values: Histogram) -> Metric:
    """Returns the numbers of values up to each bound."""
    bounds = [*(f"{bound:g}" for bound in values.bounds), "+Inf"]
    buckets = list(zip(bounds, map(float, values.cumulative()), strict=True))
    return HistogramMetricFamily(PREFIX + name, about, buckets=buckets, sum_value=values.sum)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, numbers: Numbers) -> Metric:
    for values, number in numbers.items():
        family.add_metric((values,) if isinstance(values, str) else values, number)
    return family
