"""Metrics of the disk tier; where there is none, only that it is not up."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from pagetier.daemon.disk.status import DiskReport, Standing
from pagetier.daemon.metrics.family_builders import counter, counters, gauge, gauges
from pagetier.daemon.metrics.sample import Look


def disk_families(look: Look) -> Iterator[Metric]:
    """All of them."""
    report, header = look.work.report, look.header
    standings = {standing.value: float(report.standing is standing) for standing in Standing}
    yield gauges("disk_standing", "How the disk tier is: 1 for one of these.", ["standing"], standings)
    yield counter("checksum_failures", "Pages whose bytes on disk were not those stored.", header["disk_damaged"])
    yield counter("spared_pages", "Pages that were not to be written, or could not be.", header["disk_spared"])
    if report.standing is not Standing.NONE:
        yield _queue(look)
        yield from _worker(report)
        yield from _budget(report)


def _queue(look: Look) -> Metric:
    # each page is listed once, in whatever tiers it is
    unwritten = sum(max(0, space["listed"] - space["disk_pages"]) for space in look.spaces)
    pages = {"waiting": max(0, unwritten - look.work.writing), "writing": look.work.writing}
    about = "Pages in memory alone: those that may still have to be written, and those that are being written."
    return gauges("write_behind_queue_pages", about, ["state"], pages)


def _worker(report: DiskReport) -> Iterator[Metric]:
    yield counter("disk_worker_restarts", "Times that the tier's worker was started again.", report.restarts)
    yield gauge("disk_last_sync_timestamp_seconds", "When all that was written was synced; 0: never.", report.last_sync)
    yield gauge("disk_file_bytes", "What the tier's files take.", report.file_bytes)
    yield counter("disk_device_bytes", "Bytes handed to the file system, trees included.", report.device_bytes)
    filesystem = {"free": report.disk_free, "used": max(0, report.disk_total - report.disk_free)}
    yield gauges("disk_filesystem_bytes", "The file system that the tier is on.", ["state"], filesystem)


def _budget(report: DiskReport) -> Iterator[Metric]:
    budget = report.budget
    if budget is not None:
        bytes_of_day = {"left": budget.left, "spent": max(0, budget.per_day - budget.left)}
        yield gauges("disk_budget_bytes", "Bytes that may be written a day.", ["state"], bytes_of_day)
        spared = {"budget": budget.spared_bytes}
        yield counters("spared_bytes", "Bytes that were not written, and why.", ["reason"], spared)
