"""What the disk tier does, as numbers for the metrics."""

from __future__ import annotations

import msgspec

from pagetier.daemon.disk.status import DiskReport


class Work(msgspec.Struct, frozen=True):
    """writing: pages that are being written now. write_seconds, read_seconds: how long this daemon's disk was at it."""

    report: DiskReport
    writing: int
    write_seconds: float
    read_seconds: float
