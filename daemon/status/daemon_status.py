"""The status of the daemon: all reports together, as JSON in the header of the index."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from pagetier.daemon.status.disk_report import DeviceReport, DiskReport
from pagetier.daemon.status.eviction_report import EvictionReport
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.daemon.status.hint_report import HintReport
from pagetier.daemon.status.huge_page_report import HugePageReport
from pagetier.daemon.status.phase import PhaseProgress
from pagetier.daemon.status.tenant_use import TenantUse
from pagetier.shm._core import STATUS_BYTES

_LONGEST_TEXT: Final = 400
_SHORTER_TEXTS: Final = (160, 60)
_TEXTS: Final = ("trouble", "opened", "note", "folder")


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
