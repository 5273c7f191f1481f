"""Publishes the status of the daemon in the index, where observers read it."""

from __future__ import annotations

import msgspec

from pagetier.daemon.status.daemon_status import DaemonStatus
from pagetier.daemon.status.disk_report import DiskReport
from pagetier.daemon.status.eviction_report import EvictionReport
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.daemon.status.hint_report import HintReport
from pagetier.daemon.status.huge_page_report import HugePageReport
from pagetier.daemon.status.phase import PhaseProgress
from pagetier.daemon.status.tenant_use import TenantUse
from pagetier.shm._core import Owner


class StatusPublisher:
    """Puts the reports of all parts of the daemon together. On the loop's thread only.

    Each part hands in its own report, as often as it likes; a report that is news publishes the whole status.

    Attributes:
        status: The status that was published last.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.status = DaemonStatus()

    def note_progress(self, progress: PhaseProgress) -> None:
        """Takes the phase of the daemon and how far it is."""
        self._update(progress=progress)

    def note_eviction(self, eviction: EvictionReport) -> None:
        """Takes the order of eviction."""
        self._update(eviction=eviction)

    def note_disk(self, disk: DiskReport) -> None:
        """Takes the state of the disk tier."""
        self._update(disk=disk)

    def note_hints(self, hints: HintReport) -> None:
        """Takes the counters of hints."""
        self._update(hints=hints)

    def note_huge_pages(self, huge_pages: HugePageReport) -> None:
        """Takes how much of the segments is in huge pages."""
        self._update(huge_pages=huge_pages)

    def note_tenants(self, tenants: tuple[TenantUse, ...]) -> None:
        """Takes what tenants may have and have."""
        self._update(tenants=tenants)

    def note_fleet(self, fleet: FleetStatus) -> None:
        """Takes the state of the fleet."""
        self._update(fleet=fleet)

    def note_slots(self, unjudged: tuple[int, ...], unseen: tuple[int, ...]) -> None:
        """Takes the slots that nothing judges, and those whose recorded PID is not valid here."""
        self._update(unjudged=unjudged, unseen=unseen)

    def _update(self, **reports: object) -> None:
        status = msgspec.structs.replace(self.status, **reports)
        # Most reports of the periodic work are no news. A text that does not change leaves the version in the header as
        # it is, so that readers seldom have to read twice.
        if status == self.status:
            return
        self.status = status
        # Only this thread writes the text. The version beside it is odd while the text changes, so readers, which take
        # no lock, know whether what they have copied is whole (publish_status() in the core).
        self._owner.publish_status(status.pack())
