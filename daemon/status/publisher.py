"""Publishes the status of the daemon and its disk tier in the header of the index."""

from __future__ import annotations

from collections.abc import Sequence

from pagetier.daemon.status.daemon_status import DaemonStatus
from pagetier.daemon.status.disk_report import BudgetReport, DeviceReport, DiskReport, summed
from pagetier.daemon.status.eviction_report import EvictionReport
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.daemon.status.hint_report import HintReport
from pagetier.daemon.status.huge_page_report import HugePageReport
from pagetier.daemon.status.phase import PhaseProgress
from pagetier.daemon.status.tenant_use import TenantUse
from pagetier.shm._core import Owner


class StatusPublisher:
    """The status that `pagetier stats` shows. On the loop's thread only."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.report = DiskReport()
        self.progress = PhaseProgress()
        self.eviction = EvictionReport()
        self.hints = HintReport()
        self.huge_pages = HugePageReport()
        self.fleet: FleetStatus | None = None
        self.tenants: tuple[TenantUse, ...] = ()
        self.unjudged: tuple[int, ...] = ()
        self.unseen: tuple[int, ...] = ()

    def note(self, devices: Sequence[DeviceReport], write: str, budget: BudgetReport | None) -> None:
        """Publishes the state of the disk tier."""
        self.report = summed(devices, write, budget)
        self._publish()

    def enter(self, progress: PhaseProgress) -> None:
        """Publishes the phase of the daemon and how far it is."""
        self.progress = progress
        self._publish()

    def evicts(self, eviction: EvictionReport) -> None:
        """Publishes the order of eviction, if it is news."""
        if eviction != self.eviction:
            self.eviction = eviction
            self._publish()

    def note_hints(self, hints: HintReport) -> None:
        """Publishes the counters of hints, if they changed."""
        if hints != self.hints:
            self.hints = hints
            self._publish()

    def note_huge_pages(self, huge_pages: HugePageReport) -> None:
        """Publishes how much of the segments is in huge pages, if it changed."""
        if huge_pages != self.huge_pages:
            self.huge_pages = huge_pages
            self._publish()

    def note_fleet(self, fleet: FleetStatus) -> None:
        """Publishes the state of the fleet, if it changed."""
        if fleet != self.fleet:
            self.fleet = fleet
            self._publish()

    def note_slots(self, unjudged: tuple[int, ...], unseen: tuple[int, ...]) -> None:
        """Publishes the slots that nothing judges, and those whose recorded PID is not valid here, if they changed."""
        if (unjudged, unseen) != (self.unjudged, self.unseen):
            self.unjudged, self.unseen = unjudged, unseen
            self._publish()

    def note_tenants(self, tenants: tuple[TenantUse, ...]) -> None:
        """Publishes what tenants have, if it changed."""
        if tenants != self.tenants:
            self.tenants = tenants
            self._publish()

    def _publish(self) -> None:
        status = DaemonStatus(
            progress=self.progress,
            eviction=self.eviction,
            disk=self.report,
            hints=self.hints,
            huge_pages=self.huge_pages,
            tenants=self.tenants,
            fleet=self.fleet,
            unjudged=self.unjudged,
            unseen=self.unseen,
        )
        self._owner.publish_status(status.pack())
