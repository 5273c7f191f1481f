"""Says what a tier has, in words that need no glossary."""

from __future__ import annotations

from typing import Final

from pagetier.daemon.status.disk_report import DeviceReport, DiskReport
from pagetier.shm import clock

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
