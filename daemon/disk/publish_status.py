"""The disk tier's report, kept current in the index's header, and its trouble in the log."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pagetier.daemon.common.log_throttle import FaultLog
from pagetier.daemon.disk.status import DiskReport, Standing, with_state
from pagetier.daemon.disk.write_behind import WriteBehind
from pagetier.daemon.disk.write_budget import Budget
from pagetier.shm._core import Owner
from pagetier.tiers.base import TierState


class Bulletin:
    """On the loop's thread only.

    stalled: that the disk does not do what it was told, or "". restarts: of the worker, so far.
    """

    def __init__(
        self,
        owner: Owner,
        behind: WriteBehind,
        budget: Budget,
        stalled: Callable[[], str],
        restarts: Callable[[], int],
    ) -> None:
        self._owner, self._behind, self._budget = owner, behind, budget
        self._stalled, self._restarts = stalled, restarts
        self._grumble = FaultLog("%s", "the disk answers again")
        self.report = DiskReport()

    @property
    def standing(self) -> Standing:
        """As it was told last."""
        return self.report.standing

    @property
    def is_open(self) -> bool:
        """Whether pages are found on disk."""
        return self.report.standing is Standing.OPEN

    @property
    def trouble(self) -> str:
        """Why a tier that is wanted is not open."""
        return self.report.trouble or "the disk tier is being opened"

    def hear(self, state: TierState) -> None:
        """What the worker said of the tier; note() shows it."""
        self.report = with_state(self.report, state)

    def note(self, **news: object) -> None:
        """Fields of the report that are others now, and those that this object knows of."""
        stalled = self._stalled()
        self._grumble.tell(stalled)
        known = self.report.trouble if not self.is_open and "standing" not in news else ""
        news |= {
            "trouble": news.get("trouble") or stalled or self._behind.trouble or known,
            "budget": self._budget.report(),
            "device_bytes": self._behind.device_bytes,
            "restarts": self._restarts(),
        }
        self.report = msgspec.structs.replace(self.report, **news)
        self._owner.tell_disk(self.report.pack())
