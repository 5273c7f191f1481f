"""The metrics of the disk tier, and of each of its devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import Metric

from pagetier.daemon.metrics.instruments import counter, counters, gauge, gauges
from pagetier.daemon.metrics.sample import Sample
from pagetier.daemon.status.disk_report import DeviceReport, DiskReport, Standing

_STATE, _FOLDER = "state", "folder"
_OF_DEVICE = (Standing.STARTING, Standing.OPEN, Standing.RESIZING, Standing.DOWN)


def disk_families(sample: Sample) -> Iterator[Metric]:
    """Yields the metrics of the disk tier."""
    report, header = sample.work.report, sample.header
    standings = {standing.value: float(report.standing is standing) for standing in Standing}
    yield gauges("disk_standing", "The state of the disk tier: 1 for one of these.", ["standing"], standings)
    yield counter("checksum_failures", "Pages whose bytes on disk failed their checksum.", header.disk_damaged)
    yield counter("write_skipped_pages", "Pages that disk.budget did not allow to be written.", header.disk_skipped)
    yield counter("write_failed_pages", "Pages that the disk could not write.", header.disk_failed)
    if report.standing is not Standing.NONE:
        yield _queue(sample)
        yield from _worker(report)
        yield from device_families(report.devices, header.frame_bytes)
        yield from _budget(report)


def _queue(sample: Sample) -> Metric:
    # Each page is listed once, regardless of the number of tiers that it is in.
    unwritten = sum(max(0, space.listed - space.disk_pages) for space in sample.spaces)
    pages = {"waiting": max(0, unwritten - sample.work.writing), "writing": sample.work.writing}
    about = "Pages in memory only: waiting to be written, and being written."
    return gauges("write_behind_queue_pages", about, ["state"], pages)


def _worker(report: DiskReport) -> Iterator[Metric]:
    yield counter("disk_worker_restarts", "Restarts of the worker.", report.restarts)
    yield gauge("disk_last_sync_timestamp_seconds", "Time of the last complete sync; 0: never.", report.last_sync)
    yield gauge("disk_file_bytes", "Bytes that the files of the tier take.", report.file_bytes)
    yield counter("disk_device_bytes", "Bytes handed to the file system, trees included.", report.device_bytes)
    filesystem = {"free": report.disk_free, "used": max(0, report.disk_total - report.disk_free)}
    yield gauges("disk_filesystem_bytes", "The file system of the tier.", ["state"], filesystem)


def _budget(report: DiskReport) -> Iterator[Metric]:
    budget = report.budget
    if budget is not None:
        bytes_of_day = {"left": budget.left, "spent": max(0, budget.per_day - budget.left)}
        about = "Bytes that may be written a day; as the next one only with disk.budget."
        yield gauges("disk_budget_bytes", about, ["state"], bytes_of_day)
        skipped = {"budget": budget.skipped_bytes}
        yield counters("write_skipped_bytes", "Bytes that were not written, by reason.", ["reason"], skipped)


def device_families(devices: Sequence[DeviceReport], frame_bytes: int) -> Iterator[Metric]:
    """Yields the metrics of each device, by its folder."""
    each = {device.folder: device for device in devices}
    standings = {(s.value, folder): float(d.standing is s) for folder, d in each.items() for s in _OF_DEVICE}
    about = "The state of a device of the disk tier: 1 for one of these."
    yield gauges("device_standing", about, [_STATE, _FOLDER], standings)
    troubled = {folder: float(bool(device.trouble)) for folder, device in each.items()}
    yield gauges("device_in_trouble", "Whether a device is down, does not answer or failed last.", [_FOLDER], troubled)
    pages = {folder: device.pages for folder, device in each.items()}
    yield gauges("device_pages", "Pages on a device.", [_FOLDER], pages)
    frames = {("used", folder): device.used_frames for folder, device in each.items()}
    frames |= {("room", folder): device.room_frames for folder, device in each.items()}
    about = "Bytes of the frames in use on a device, and of those that fit."
    yield gauges("device_frame_bytes", about, [_STATE, _FOLDER], {key: n * frame_bytes for key, n in frames.items()})
    written = {folder: device.device_bytes for folder, device in each.items()}
    yield counters("device_written_bytes", "Bytes handed to the file system of a device.", [_FOLDER], written)
    restarts = {folder: device.restarts for folder, device in each.items()}
    yield counters("device_worker_restarts", "Restarts of the worker of a device.", [_FOLDER], restarts)
