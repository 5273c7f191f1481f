"""The status of the daemon: the reports of all its parts, as JSON in the pages after the header of the index."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from pagetier.daemon.status.disk_report import DeviceReport, DiskReport
from pagetier.daemon.status.eviction_report import EvictionReport
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.daemon.status.hint_report import HintReport
from pagetier.daemon.status.huge_page_report import HugePageReport
from pagetier.daemon.status.phase import Phase, PhaseProgress
from pagetier.daemon.status.tenant_use import TenantUse
from pagetier.shm._core import STATUS_BYTES

_MOST_CHARACTERS: Final = (1000, 180)
"""Of a text. With the smaller number even texts of escaped characters fit for all devices, tenants and the fleet."""


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon publishes about itself.

    Attributes:
        progress: The phase of the daemon and how far it is.
        eviction: The order of eviction.
        disk: The disk tier and its devices.
        hints: The counters of hints.
        huge_pages: How much of the segments is in huge pages.
        tenants: What each tenant may have and has; nothing without quotas.
        fleet: The fleet.
        unjudged: The slots of which nothing says whether their process lives.
        unseen: The slots whose recorded PID is not valid where the daemon runs.
    """

    progress: PhaseProgress = PhaseProgress()
    eviction: EvictionReport = EvictionReport()
    disk: DiskReport = DiskReport()
    hints: HintReport = HintReport()
    huge_pages: HugePageReport = HugePageReport()
    tenants: tuple[TenantUse, ...] = ()
    fleet: FleetStatus = FleetStatus()
    unjudged: tuple[int, ...] = ()
    unseen: tuple[int, ...] = ()

    def pack(self) -> bytes:
        """Returns the status as JSON that fits into its room. A text that is cut for it ends with "…"."""
        packed = (msgspec.json.encode(self._cut(most)) for most in _MOST_CHARACTERS)
        return next(text for text in packed if len(text) <= STATUS_BYTES)

    def _cut(self, most: int) -> DaemonStatus:
        devices = tuple(_cut(device, most) for device in self.disk.devices)
        disk = msgspec.structs.replace(_cut(self.disk, most), devices=devices)
        return msgspec.structs.replace(self, disk=disk, fleet=_cut(self.fleet, most))


_Report = TypeVar("_Report", DiskReport, DeviceReport, FleetStatus)


def _cut(report: _Report, most: int) -> _Report:
    """Returns the report with texts of at most so many characters."""
    texts = {name: value for name, value in msgspec.structs.asdict(report).items() if isinstance(value, str)}
    cut = {name: f"{text[: most - 1]}…" for name, text in texts.items() if len(text) > most}
    return msgspec.structs.replace(report, **cut)


def unpack(text: bytes | None) -> DaemonStatus:
    """Returns the status in the index; that of a daemon that starts if none was published yet.

    A text that is damaged, in memory without error correction, leaves the phase unknown and all reports empty. The next
    report that is news replaces it.
    """
    try:
        return msgspec.json.decode(text, type=DaemonStatus) if text else DaemonStatus()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return DaemonStatus(progress=PhaseProgress(Phase.UNKNOWN))
