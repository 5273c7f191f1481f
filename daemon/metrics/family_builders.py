"""Families of metrics in few words: one name, and a number for each combination of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

PREFIX = "pagetier_"

Numbers: TypeAlias = Mapping[str, float] | Mapping[tuple[str, str], float]
"""By the value of the one label, or by the values of both in their order."""


def counter(name: str, about: str, value: float) -> Metric:
    """One number that rises; `name` without the `_total` that it gets."""
    return CounterMetricFamily(PREFIX + name, about, value=value)


def counters(name: str, about: str, labels: Sequence[str], numbers: Numbers) -> Metric:
    """Numbers that rise."""
    family = CounterMetricFamily(PREFIX + name, about, labels=labels)
    return _filled(family, numbers)


def gauge(name: str, about: str, value: float) -> Metric:
    """One number that rises and falls."""
    return GaugeMetricFamily(PREFIX + name, about, value=value)


def gauges(name: str, about: str, labels: Sequence[str], numbers: Numbers) -> Metric:
    """Numbers that rise and fall."""
    family = GaugeMetricFamily(PREFIX + name, about, labels=labels)
    return _filled(family, numbers)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, numbers: Numbers) -> Metric:
    for values, number in numbers.items():
        family.add_metric((values,) if isinstance(values, str) else values, number)
    return family
