"""Publishes the status of the daemon and its disk tier in the header of the index, and logs faults of the disk."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pagetier.daemon.common.eviction_report import EvictionReport
from pagetier.daemon.common.huge_page_report import HugePageReport
from pagetier.daemon.common.log_throttle import FaultLog
from pagetier.daemon.disk.status import (
    DaemonStatus,
    DiskReport,
    HintReport,
    PhaseProgress,
    Standing,
    with_state,
)
from pagetier.daemon.disk.write_behind import WriteBehind
from pagetier.daemon.disk.write_budget import Budget
from pagetier.shm._core import Owner
from pagetier.tiers.base import TierState


class StatusPublisher:
    """The status that `pagetier stats` shows. On the loop's thread only."""

    def __init__(
        self,
        owner: Owner,
        write_behind: WriteBehind,
        budget: Budget,
        stalled: Callable[[], str],
        restarts: Callable[[], int],
    ) -> None:
        self._owner, self._write_behind, self._budget = owner, write_behind, budget
        self._stalled, self._restarts = stalled, restarts
        self._faults = FaultLog("%s", "the disk answers again")
        self.report = DiskReport()
        self.progress = PhaseProgress()
        self.eviction = EvictionReport()
        self.hints = HintReport()
        self.huge_pages = HugePageReport()

    @property
    def standing(self) -> Standing:
        """The standing that was published last."""
        return self.report.standing

    @property
    def is_open(self) -> bool:
        """Whether pages can be found on disk."""
        return self.report.standing is Standing.OPEN

    @property
    def trouble(self) -> str:
        """The reason why a configured tier is not open."""
        return self.report.trouble or "the disk tier is being opened"

    def hear(self, state: TierState) -> None:
        """Takes over the state that the worker reported; note() publishes it."""
        self.report = with_state(self.report, state)

    def note(self, **news: object) -> None:
        """Publishes the report with the fields in `news` and the current values of the others."""
        stalled = self._stalled()
        self._faults.report(stalled)
        known = self.report.trouble if not self.is_open and "standing" not in news else ""
        news |= {
            "trouble": news.get("trouble") or stalled or self._write_behind.trouble or known,
            "budget": self._budget.report(),
            "device_bytes": self._write_behind.device_bytes,
            "restarts": self._restarts(),
        }
        self.report = msgspec.structs.replace(self.report, **news)
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

    def _publish(self) -> None:
        status = DaemonStatus(
            progress=self.progress,
            eviction=self.eviction,
            disk=self.report,
            hints=self.hints,
            huge_pages=self.huge_pages,
        )
        self._owner.publish_status(status.pack())
