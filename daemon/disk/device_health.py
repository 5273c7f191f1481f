"""Whether a device answers, writes and syncs: its faults, and the pause after a failed write."""

from __future__ import annotations

from typing import Final

from pagetier.daemon.common import loop_clock
from pagetier.daemon.common.log_throttle import FaultLog
from pagetier.tiers.worker_protocol import Stored, Wrote

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0


class DeviceHealth:
    """The faults of one device. On the loop's thread only.

    Attributes:
        answers: The fault that the device does not answer.
        writes: The fault that it cannot write or drop pages. A sync that succeeds does not end it.
        syncs: The fault that it cannot sync. A write that succeeds does not end it.
        refusal: The reason of the last page or sync that failed, until the next flush or worker; "" if there was none.
    """

    def __init__(self, folder: str) -> None:
        place = folder.replace("%", "%%")
        self.answers = FaultLog(f"{place}: %s", f"{folder}: the disk answers again")
        self.writes = FaultLog(f"the disk tier in {place} cannot write: %s", f"the disk tier in {folder} writes again")
        self.syncs = FaultLog(f"the disk tier in {place} cannot sync: %s", f"the disk tier in {folder} syncs again")
        self.refusal = ""
        self._pages_failed = False
        self._pause, self._paused_until = 0.0, 0.0

    @property
    def trouble(self) -> str:
        """The reason why the last attempt to change the device, or the last sync, failed; "" if both succeeded."""
        return self.writes.reason or self.syncs.reason

    @property
    def paused(self) -> bool:
        """Whether pages should rather go to other devices for now, because this one failed to write."""
        return loop_clock.now() < self._paused_until

    @property
    def has_failed_pages(self) -> bool:
        """Whether pages failed in the last command that changed the device."""
        return bool(self.writes.reason) and self._pages_failed

    def wrote(self, report: Wrote, dropped: bytes) -> None:
        """Notes the result of a command. One that changed nothing on the disk neither proves nor clears a fault."""
        if report.reason or dropped or Stored.DONE in report.stored:
            self.writes.report(report.reason)
            self._pages_failed = Stored.FAILED in report.stored
        if Stored.FAILED in report.stored:
            self._pause = min(2 * self._pause or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            self._paused_until = loop_clock.now() + self._pause
        elif Stored.DONE in report.stored:
            self._pause = 0.0
        self.refusal = report.reason or self.refusal

    def synced(self, reason: str) -> None:
        """Notes the result of a sync."""
        self.syncs.report(reason)
        self.refusal = reason or self.refusal

    def forget(self) -> None:
        """Forgets the faults of writes and syncs but not the refusal: the worker is gone, which matters more."""
        self.writes.forget()
        self.syncs.forget()
        self._pause = self._paused_until = 0.0

    def try_again(self) -> None:
        """Forgets all earlier errors, so that all pages are tried again."""
        self.forget()
        self.refusal = ""
