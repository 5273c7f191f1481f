"""The status of the disk tier and its devices, as `pagetier stats` shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

import msgspec

from pagetier.shm.units import counted
from pagetier.tiers.base import TierState


class Standing(Enum):
    """The state of the disk tier."""

    NONE = "none"
    STARTING = "starting"
    OPEN = "open"
    RESIZING = "resizing"
    DOWN = "down"


class BudgetReport(msgspec.Struct, frozen=True, kw_only=True):
    """The write budget.

    Attributes:
        per_day: Bytes that may be written a day.
        left: Bytes that may be written now.
        skipped_bytes: Bytes that were not written because the budget was spent.
    """

    per_day: int
    left: int
    skipped_bytes: int


class _FilesReport(msgspec.Struct, frozen=True, kw_only=True):
    """What both a device and the tier report of workers and files.

    The fields are keys of `pagetier stats --json`: new ones may be added, none is renamed.

    Attributes:
        folder: The folder of the files; those of several devices with commas.
        standing: none, starting, open, resizing or down. The tier is open if one of its devices is.
        trouble: Why it is down, or its last fault; "" if there is none. Of several devices it names those.
        opened: How the files were opened.
        note: What the workers reported about the files.
        cap: The largest size of the files.
        room_frames: The number of frames that fit under the cap.
        file_bytes: The size of the files.
        disk_free: Free bytes of the file systems.
        disk_total: The size of the file systems.
        last_sync: The time of the last sync in seconds since 1970, of all devices; 0 if one has had none.
        clean: Nothing was written since the last sync.
        damaged: Pages that failed their checksum.
        device_bytes: Bytes that this daemon's workers handed to the file systems, trees included.
        restarts: Restarts of the workers.
        expected_pages: Pages that workers found and are reporting; 0 once all are known.
    """

    folder: str = ""
    standing: Standing = Standing.NONE
    trouble: str = ""
    opened: str = ""
    note: str = ""
    cap: int = 0
    room_frames: int = 0
    file_bytes: int = 0
    disk_free: int = 0
    disk_total: int = 0
    last_sync: float = 0.0
    clean: bool = True
    damaged: int = 0
    device_bytes: int = 0
    restarts: int = 0
    expected_pages: int = 0


class DeviceReport(_FilesReport, frozen=True, kw_only=True):
    """The status of one device of the disk tier.

    Attributes:
        used_frames: The number of frames in use.
        pages: The pages on it.
        bytes: Their bytes.
        stored_bytes: The bytes of the slots that they take: fewer than `bytes` if they are compressed.
        slot_bytes: The bytes of a slot if pages are compressed, else 0.
    """

    used_frames: int = 0
    pages: int = 0
    bytes: int = 0
    stored_bytes: int = 0
    slot_bytes: int = 0

    @property
    def state(self) -> str:
        """The standing and, while the pages on the device are being read, how many are known."""
        return _state(self.standing, self.pages, self.expected_pages)


class DiskReport(_FilesReport, frozen=True, kw_only=True):
    """The status of the disk tier.

    Attributes:
        write: The rule for writing, `disk.write`.
        budget: The write budget, None if there is no limit.
        devices: The devices.
    """

    write: str = ""
    budget: BudgetReport | None = None
    devices: tuple[DeviceReport, ...] = ()

    @property
    def state(self) -> str:
        """The standing and, while the pages of devices are being read, how many of theirs are known."""
        pages = sum(device.pages for device in self.devices if device.expected_pages)
        return _state(self.standing, pages, self.expected_pages)

    @property
    def why_unlisted(self) -> str:
        """Why a daemon that has a disk tier does not list its pages on disk; "" if it does."""
        if self.standing is Standing.OPEN:
            return ""
        if self.standing is Standing.DOWN:
            return f"the disk tier is down, so its pages are not listed: {self.trouble}"
        return "the disk tier is being opened, so its pages are not listed yet"

    @property
    def several(self) -> bool:
        """Whether the tier has more than one device."""
        return len(self.devices) > 1


class DiskCounters(msgspec.Struct, frozen=True):
    """Counters of the disk tier's work.

    Attributes:
        report: The published status.
        writing: Pages that are being written.
        write_seconds: How long writes were in progress since the daemon started.
        read_seconds: How long reads were in progress since the daemon started.
    """

    report: DiskReport
    writing: int
    write_seconds: float
    read_seconds: float


_PROGRESS: Final = (Standing.OPEN, Standing.STARTING, Standing.RESIZING, Standing.DOWN, Standing.NONE)
_COUNTERS: Final = ("damaged", "device_bytes", "restarts")
_SUMS: Final = ("cap", "room_frames", "file_bytes", "disk_free", "disk_total", "expected_pages", *_COUNTERS)
_NONE_REMOVED: Final = Counter[str]()


def counters_of(report: DeviceReport) -> Counter[str]:
    """Returns what a device has counted: the sums of the tier keep it when a reload removes the device."""
    return Counter({name: getattr(report, name) for name in _COUNTERS})


def summed(
    devices: Sequence[DeviceReport],
    write: str,
    budget: BudgetReport | None,
    removed: Mapping[str, int] = _NONE_REMOVED,
) -> DiskReport:
    """Returns the status of a tier with these devices, of which there is one at least.

    Args:
        devices: Their reports.
        write: The rule for writing.
        budget: The write budget.
        removed: What devices counted that are removed by now: a counter never falls.
    """
    return DiskReport(
        standing=min((device.standing for device in devices), key=_PROGRESS.index),
        trouble=_named(devices, "trouble"),
        folder=", ".join(device.folder for device in devices),
        write=write,
        opened=_named(devices, "opened"),
        note=_named(devices, "note"),
        last_sync=min(device.last_sync for device in devices),
        clean=all(device.clean for device in devices),
        budget=budget,
        devices=tuple(devices),
        **{name: sum(getattr(device, name) for device in devices) + removed.get(name, 0) for name in _SUMS},
    )


def _state(standing: Standing, pages: int, expected: int) -> str:
    return f"{standing.value}, {pages:,} of {counted(expected, 'page')} read" if expected else standing.value


def _named(devices: Sequence[DeviceReport], name: str) -> str:
    """Returns a text of the devices that have one, with their folders unless all have the same."""
    texts = {device.folder: str(getattr(device, name)) for device in devices}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{folder}: {text}" for folder, text in texts.items() if text)


def with_state(report: DeviceReport, state: TierState, damaged: int = 0) -> DeviceReport:
    """Returns the report with the state that the worker sent, and with what earlier workers found `damaged`."""
    return msgspec.structs.replace(
        report,
        opened=state.opened,
        note=state.note,
        cap=state.cap_bytes,
        room_frames=state.capacity,
        file_bytes=state.file_bytes,
        disk_free=state.disk_free,
        disk_total=state.disk_total,
        last_sync=state.last_sync / 1e9,
        clean=state.clean,
        damaged=damaged + state.damaged,
        slot_bytes=state.slot_bytes,
    )
