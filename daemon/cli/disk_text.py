"""The disk tier in a few lines for people."""

from __future__ import annotations

import time
from collections.abc import Iterator

from pagetier.daemon.cli.snapshot import DiskWork
from pagetier.daemon.disk.status import DiskReport
from pagetier.shm.units import format_size


def disk_lines(disk: DiskReport, work: DiskWork) -> Iterator[str]:
    """How it is, where it is, what went wrong."""
    yield f"Disk tier in {disk.folder}: {disk.standing.value}{f', {disk.trouble}' if disk.trouble else ''}"
    if disk.opened:
        yield f"found {disk.opened}; {synced(disk)}; damaged pages dropped: {disk.damaged:,}"
        yield (
            f"files take {format_size(disk.file_bytes)} of {format_size(disk.cap)},"
            f" {format_size(disk.disk_free)} free on the file system; {format_size(disk.device_bytes)} handed to it"
        )
    if disk.note:
        yield disk.note
    if work.lost or work.spared:
        yield f"{work.lost:,} pages left memory before they were written, {work.spared:,} were not to be written"
    if disk.budget is not None:
        left, per_day = format_size(disk.budget.left), format_size(disk.budget.per_day)
        yield f"{left} of {per_day} a day may be written now; {format_size(disk.budget.spared_bytes)} were not"


def synced(disk: DiskReport) -> str:
    """When it was last synced, and whether anything was written since."""
    if not disk.last_sync:
        return "never synced"
    ago = max(0.0, time.time() - disk.last_sync)
    return f"synced {ago:.0f} s ago" + ("" if disk.clean else ", written to since")
