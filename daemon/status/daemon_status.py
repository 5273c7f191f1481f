"""The status of the daemon and its disk tier: JSON in the header of the index."""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeVar

import msgspec

from pagetier.daemon.common import loop_clock
from pagetier.daemon.status.disk_report import DeviceReport, DiskReport
from pagetier.daemon.status.eviction_report import EvictionReport
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.daemon.status.huge_page_report import HugePageReport
from pagetier.daemon.status.tenant_use import TenantUse
from pagetier.shm._core import STATUS_BYTES

_LONGEST_TEXT: Final = 400
_SHORTER_TEXTS: Final = (160, 60)
_TEXTS: Final = ("trouble", "opened", "note", "folder")


class Phase(Enum):
    """The phase of a daemon's life. Engines can attach while it serves or stops."""

    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"


class PhaseProgress(msgspec.Struct, frozen=True):
    """How far the daemon is with its phase: bytes done of all bytes. Both are 0 if nothing is to be done."""

    phase: Phase = Phase.STARTING
    done: int = 0
    total: int = 0

    @property
    def share(self) -> float:
        """How far the daemon is with its phase, from 0 to 1. A start begins with 0, a phase without bytes is at 1."""
        if self.total:
            return round(self.done / self.total, 3)
        return float(self.phase is not Phase.STARTING)


class HintReport(msgspec.Struct, frozen=True, kw_only=True):
    """Hints of engines and operators, since the daemon started. Pages count once for each hint that names them.

    The fields are keys of `pagetier stats --json`: new ones may be added, none is renamed.

    Attributes:
        pages: Pages that hints named.
        applied: Pages that had the hint afterwards.
        absent: Pages that were in no tier or, to be kept, not in memory or beyond evict.keep_share.
        without_effect: Pages that hints named while evict.policy was lru.
        wrong: Hints that were ignored as a whole, for example with a negative time to live.
        kept_bytes: Bytes of the frames that are kept now.
        keeps_ended_early: Requests to keep pages that ended before their time, in favour of others.
    """

    pages: int = 0
    applied: int = 0
    absent: int = 0
    without_effect: int = 0
    wrong: int = 0
    kept_bytes: int = 0
    keeps_ended_early: int = 0


class _PackedDevice(DeviceReport, frozen=True, kw_only=True, array_like=True):
    """A DeviceReport without the names of its fields, of which the header would have room for few."""


class _PackedFleet(FleetStatus, frozen=True, kw_only=True, array_like=True):
    """A FleetStatus without the names of its fields."""


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon publishes about itself: its phase, order of eviction, hints, pages, tenants, disk and fleet."""

    progress: PhaseProgress = PhaseProgress()
    eviction: EvictionReport = EvictionReport()
    disk: DiskReport = DiskReport()
    hints: HintReport = HintReport()
    huge_pages: HugePageReport = HugePageReport()
    tenants: tuple[TenantUse, ...] = ()
    fleet: FleetStatus | None = None
    unjudged: tuple[int, ...] = ()
    unseen: tuple[int, ...] = ()

    def pack(self) -> bytes:
        """Returns the status as JSON, shortened to fit into the header: tenants are left out before devices are."""
        reports = (_shortened(self.disk, most) for most in (_LONGEST_TEXT, *_SHORTER_TEXTS))
        statuses = [_PackedStatus.of(self, disk) for disk in (self.disk, *reports)]
        without_tenants = [msgspec.structs.replace(status, tenants=()) for status in statuses]
        least = msgspec.structs.replace(self, disk=DiskReport(standing=self.disk.standing), tenants=())
        texts = map(msgspec.json.encode, (*statuses, *without_tenants, _PackedStatus.of(least, least.disk)))
        return next(text for text in texts if len(text) <= STATUS_BYTES)


class _PackedStatus(DaemonStatus, frozen=True, kw_only=True):
    """A status with its devices and its fleet in short."""

    devices: tuple[_PackedDevice, ...] = ()
    packed_fleet: _PackedFleet | None = None

    @classmethod
    def of(cls, status: DaemonStatus, disk: DiskReport) -> _PackedStatus:
        """Returns a status with this report of the disk tier."""
        devices = tuple(_PackedDevice(**msgspec.structs.asdict(device)) for device in disk.devices)
        fields = msgspec.structs.asdict(status) | {"disk": msgspec.structs.replace(disk, devices=()), "fleet": None}
        fleet = _PackedFleet(**msgspec.structs.asdict(status.fleet)) if status.fleet else None
        return cls(**fields, devices=devices, packed_fleet=fleet)

    def whole(self) -> DaemonStatus:
        """Returns the status with its devices where they belong."""
        devices = tuple(DeviceReport(**msgspec.structs.asdict(device)) for device in self.devices)
        disk = msgspec.structs.replace(self.disk, devices=devices)
        own = {name: getattr(self, name) for name in DaemonStatus.__struct_fields__}
        fleet = FleetStatus(**msgspec.structs.asdict(self.packed_fleet)) if self.packed_fleet else None
        return DaemonStatus(**own | {"disk": disk, "fleet": fleet})


_Report = TypeVar("_Report", DiskReport, DeviceReport)


def _shortened(report: DiskReport, most: int) -> DiskReport:
    """Returns the report with texts of at most so many characters, all devices together."""
    each = most // max(1, len(report.devices))
    devices = tuple(_short(device, each) for device in report.devices)
    return msgspec.structs.replace(_short(report, most), devices=devices)


def _short(report: _Report, most: int) -> _Report:
    return msgspec.structs.replace(report, **{name: getattr(report, name)[:most] for name in _TEXTS})


def unpack(text: bytes | None) -> DaemonStatus:
    """Returns the status in the header; that of a daemon that starts if none was published yet."""
    return msgspec.json.decode(text, type=_PackedStatus).whole() if text else DaemonStatus()


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


class Busy:
    """A clock that runs while commands are in progress."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._before = 0.0

    def note(self, commands: int) -> None:
        """Sets the number of commands in progress."""
        if commands and self._since is None:
            self._since = loop_clock.now()
        elif not commands:
            self._before, self._since = self.seconds, None

    @property
    def seconds(self) -> float:
        """The seconds so far."""
        return self._before + (loop_clock.now() - self._since if self._since is not None else 0.0)
