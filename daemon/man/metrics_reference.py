"""Generates docs/metrics.md from the help texts of the metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from pagetier.daemon.common.histogram import Histogram
from pagetier.daemon.common.namespaces import IdleCounts
from pagetier.daemon.metrics.families import families
from pagetier.daemon.metrics.instruments import PREFIX
from pagetier.daemon.metrics.sample import Sample
from pagetier.daemon.stats.size_advice import (
    DISK_FACTORS,
    MEMORY_FACTORS,
    AbsentTokens,
    NamespaceAdvice,
    Prediction,
    SizeAdvice,
)
from pagetier.daemon.status.disk_report import BudgetReport, DeviceReport, DiskCounters, DiskReport, Standing
from pagetier.daemon.status.eviction_report import EvictionReport
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.daemon.status.hint_report import HintReport
from pagetier.daemon.status.huge_page_report import HugePageReport
from pagetier.daemon.status.phase import PhaseProgress
from pagetier.daemon.status.tenant_use import TenantUse
from pagetier.shm._core import Absence, AttachmentCounts, IndexHeader, NamespaceRecord, SampledLookups

_HEAD: Final = """\
# Metrics

These are the daemon's metrics, generated from their help texts (`make man`); do not edit this page.
[Monitoring](monitoring.md#prometheus) says how Prometheus gets them.

Most counters run since the segments were made and continue over restarts of the daemon. Those "of
this daemon" start with it. The daemon's own processor time, memory and files are in `process_*`.

An engine has metrics of its own at its own address: vLLM's `vllm:pagetier_*`, such as
`vllm:pagetier_stored_pages_total` and `vllm:pagetier_failed_loads_total`, are in
[vllm.md](vllm.md#metrics-and-events).

| metric | labels | meaning |
| -- | -- | -- |
"""
_MORE: Final = {
    "slower_tokens": "vllm.md#load-or-compute",
    "absent_tokens": "sizing.md#why-there-was-no-hit",
    "predicted_hit_ratio": "sizing.md#how-much-memory",
    "left_out_pages": "contract.md#promises",
    "lookups": "monitoring.md#what-a-hit-is",
    "remote_breaker_open": "fleet.md#when-the-store-fails",
}
"""Where more is said of a metric, by its name without prefix and suffix."""
_OPEN: Final = frozenset({"version", "protocol", "format", "policy", "folder", "namespace", "quota"})
"""Labels whose values depend on the daemon."""
_SUFFIX: Final = {"counter": "_total", "info": "_info"}


def metrics_reference() -> str:
    """Returns the page, the same on every host."""
    return _HEAD + "".join(f"{_row(family)}\n" for family in families(_complete_sample(), most_spaces=1))


def _row(family: Metric) -> str:
    labels = "; ".join(_labels(family))
    name = family.name.removeprefix(PREFIX)
    meaning = family.documentation.removesuffix(".") + (f" ({_link(_MORE[name])})" if name in _MORE else "")
    return f"| `{family.name}{_SUFFIX.get(family.type, '')}` | {labels} | {meaning} |"


def _link(place: str) -> str:
    return f"[{place.partition('.')[0]}]({place})"


def _labels(family: Metric) -> Iterator[str]:
    """Yields each label, with its values if they are always the same."""
    values: dict[str, list[str]] = {}
    for sample in family.samples:
        for label, value in sample.labels.items():
            values.setdefault(label, []).append(value)
    for label in sorted(values.keys() - {"le"}):
        known = ", ".join(dict.fromkeys(values[label]))
        yield f"`{label}`" if label in _OPEN else f"`{label}`: {known}"


def _complete_sample() -> Sample:
    """Returns a sample of a daemon with all features, so that it has each metric."""
    return Sample(
        header=IndexHeader(*[0] * len(IndexHeader._fields))._replace(used_frames=1, pages=1),
        counts=AttachmentCounts(*[0] * len(AttachmentCounts._fields)),
        attached=0,
        spaces=[NamespaceRecord(0, b"", "", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)],
        lookups=SampledLookups(0.0, 0.0, 0, 0, 0.0, 0.0, 0.0, (0.0,) * len(Absence)),
        advice=_advice(),
        deaths=0,
        reserve_seconds=Histogram(),
        work=DiskCounters(_disk(), 0, 0.0, 0.0),
        idle_namespaces=IdleCounts(),
        progress=PhaseProgress(),
        eviction=EvictionReport(),
        hints=HintReport(),
        huge_pages=HugePageReport(index=0.0, locks=0.0, arena=0.0),
        fleet=FleetStatus(standing="open"),
        question_seconds=Histogram(),
        tenants=(_tenant(),),
        quota_rejections={},
    )


def _disk() -> DiskReport:
    budget = BudgetReport(per_day=0, left=0, skipped_bytes=0)
    return DiskReport(standing=Standing.OPEN, budget=budget, devices=(DeviceReport(),))


def _tenant() -> TenantUse:
    return TenantUse(
        pattern="",
        arena_minimum=0.0,
        arena_maximum=0.0,
        disk_minimum=0.0,
        disk_maximum=0.0,
        arena_frames=0,
        disk_frames=0,
    )


def _advice() -> SizeAdvice:
    total = NamespaceAdvice(
        namespace="",
        tokens=0,
        hit_ratio=0.0,
        endless_hit_ratio=0.0,
        memory=tuple(map(_prediction, MEMORY_FACTORS)),
        disk=tuple(map(_prediction, DISK_FACTORS)),
        absent=AbsentTokens(),
    )
    return SizeAdvice(
        total=total,
        namespaces=(),
        arena_bytes=0,
        disk_bytes=0,
        present_disk=None,
        seconds=0.0,
        tokens_per_second=0.0,
        knee_bytes=0,
        curve=(),
        sampled_share=0.0,
        lookups=0,
        lost_lookups=0,
        hit_ratio_of_all=0.0,
        warning="",
    )


def _prediction(factor: float) -> Prediction:
    return Prediction(lower_bound=False, size=f"{factor:g}x", bytes=0, hit_ratio=0.0, saved_tokens_per_second=0.0)
