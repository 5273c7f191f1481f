"""Limits the bytes written to disk a day.

Whole prefixes are allowed, because a page is useless without those before it.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from enum import Enum
from typing import Final

import msgspec

from pagetier.daemon.common import loop_clock
from pagetier.daemon.status.disk_report import BudgetReport
from pagetier.shm._core import ReserveOutcome

_DAY_S: Final = 86400.0
_MOST_RESERVATIONS: Final = 1 << 20


class _Verdict(Enum):
    OPEN = 0
    ALLOWED = 1
    REJECTED = 2


class _Granted(msgspec.Struct):
    """The pages of one reservation, which follow those of the reservation `parent` (0: at the start of a prompt)."""

    parent: int
    size: int
    verdict: _Verdict = _Verdict.OPEN


class Budget:
    """A token bucket that fills evenly over the day and holds the bytes of one day.

    It starts full; 0 a day is no limit.

    The first page of a reservation that is to be written pays for all of its pages, and for those of the unpaid
    reservations before it. If the bucket has too few bytes, the reservation and all that follow it are rejected.
    Reservations that are no longer known, because they are older than this daemon, are not written.
    """

    def __init__(self, per_day: int) -> None:
        self.per_day = per_day
        self._left = float(per_day)
        self._at = loop_clock.now()
        self._skipped_bytes = 0
        self._granted: OrderedDict[int, _Granted] = OrderedDict()

    def note(self, outcomes: bytes, reservations: bytes, sizes: bytes) -> None:
        """Records the outcome of a reservation.

        Args:
            outcomes: The outcome of each page, the first page of the prompt first.
            reservations: The number of each page's reservation, u32.
            sizes: The size of each page, u64.
        """
        granted = [i for i, outcome in enumerate(outcomes) if outcome == ReserveOutcome.GRANTED]
        if not granted:
            return
        numbers, nbytes = array("I", reservations), array("Q", sizes)
        first = granted[0]
        parent = numbers[first - 1] if first else 0
        # An unknown parent means that the prefix is not on disk: this reservation is never allowed.
        self._granted[numbers[first]] = _Granted(parent, sum(nbytes[i] for i in granted))
        if first and parent not in self._granted:
            self._granted[numbers[first]].verdict = _Verdict.REJECTED
        while len(self._granted) > _MOST_RESERVATIONS:
            self._granted.popitem(last=False)

    def allows(self, reservation: int, size: int) -> bool:
        """Returns whether a page of this reservation may be written."""
        if not self.per_day:
            return True
        if self._is_allowed(reservation):
            return True
        self._skipped_bytes += size
        return False

    def spend(self, size: int) -> None:
        """Charges bytes written beyond the allowed ones: trees, padding, and writes that an administrator requested.

        The bucket may become negative; the following hours fill it again.
        """
        self._left -= size

    def report(self) -> BudgetReport | None:
        """Returns the state of the budget, None if there is no limit."""
        if not self.per_day:
            return None
        self._fill()
        return BudgetReport(per_day=self.per_day, left=max(0, int(self._left)), skipped_bytes=self._skipped_bytes)

    def _is_allowed(self, number: int) -> bool:
        granted = self._granted.get(number)
        if granted is None:
            return False
        if granted.verdict is _Verdict.OPEN:
            self._decide(granted)
        return granted.verdict is _Verdict.ALLOWED

    def _decide(self, granted: _Granted) -> None:
        unpaid = [granted]
        while (above := self._granted.get(unpaid[-1].parent)) is not None and above.verdict is _Verdict.OPEN:
            unpaid.append(above)
        rejected = above is not None and above.verdict is _Verdict.REJECTED
        cost = sum(one.size for one in unpaid)
        self._fill()
        if rejected or cost > self._left:
            granted.verdict = _Verdict.REJECTED
            return
        self._left -= cost
        for one in unpaid:
            one.verdict = _Verdict.ALLOWED

    def _fill(self) -> None:
        now = loop_clock.now()
        self._left = min(self.per_day, self._left + (now - self._at) * self.per_day / _DAY_S)
        self._at = now
