"""Says what a tier has, in words that need no glossary."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from pagetier.daemon.stats.snapshot_reader import read_status
from pagetier.daemon.status.disk_report import DeviceReport, DiskReport
from pagetier.shm import clock
from pagetier.shm._core import Observer
from pagetier.shm.protocol import DISK

_AT_OPENING: Final = {"new": "new and empty"}


def at_opening(disk: DiskReport | DeviceReport) -> str:
    """Returns in which state the tier's or the device's files were when this daemon opened them."""
    return f"opened {_AT_OPENING.get(disk.opened, disk.opened)}" if disk.opened else "not opened yet"


def synced(disk: DiskReport | DeviceReport) -> str:
    """Returns how much of what was written a power loss leaves."""
    if not disk.last_sync:
        return "not synced yet"
    if disk.clean:
        return "synced: what is on disk survives a power loss"
    ago = max(0.0, clock.date() - disk.last_sync)
    return f"synced {ago:.0f} s ago; a power loss takes what was written since"


def why_unlisted(observer: Observer, extras: Collection[str]) -> str:
    """Returns why a daemon with these extras does not list its pages on disk; "" if it does."""
    return read_status(observer).disk.why_unlisted if DISK in extras else ""
