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
from pagetier.daemon.disk.disk_report import BudgetReport
from pagetier.shm._core import ReserveOutcome

_DAY_S: Final = 86400.0
_MOST_CHAINS: Final = 1 << 20


class _Verdict(Enum):
    OPEN = 0
    ALLOWED = 1
    REJECTED = 2


class _Chain(msgspec.Struct):
    """A run of pages granted together, after the run `parent` (0: at the start of a prompt)."""

    parent: int
    size: int
    verdict: _Verdict = _Verdict.OPEN


class Budget:
    """A token bucket that fills evenly over the day and holds the bytes of one day.

    It starts full; 0 a day is no limit.

    The first page of a run that is to be written pays for the whole run, and for the unpaid runs before it. If the
    bucket has too few bytes, the run and all runs after it are rejected. Runs that are no longer known, because they
    are older than this daemon, are not written.
    """

    def __init__(self, per_day: int) -> None:
        self.per_day = per_day
        self._left = float(per_day)
        self._at = loop_clock.now()
        self._skipped_bytes = 0
        self._chains: OrderedDict[int, _Chain] = OrderedDict()

    def note(self, outcomes: bytes, chains: bytes, sizes: bytes) -> None:
        """Records the outcome of a reservation.

        Args:
            outcomes: The outcome of each page, the first page of the prompt first.
            chains: The number of each page's run, u32.
            sizes: The size of each page, u64.
        """
        granted = [i for i, outcome in enumerate(outcomes) if outcome == ReserveOutcome.GRANTED]
        if not granted:
            return
        numbers, nbytes = array("I", chains), array("Q", sizes)
        first = granted[0]
        parent = numbers[first - 1] if first else 0
        # An unknown parent means that the prefix is not on disk: the run gets a chain that is never allowed.
        self._chains[numbers[first]] = _Chain(parent, sum(nbytes[i] for i in granted))
        if first and parent not in self._chains:
            self._chains[numbers[first]].verdict = _Verdict.REJECTED
        while len(self._chains) > _MOST_CHAINS:
            self._chains.popitem(last=False)

    def allows(self, chain: int, size: int) -> bool:
        """Returns whether a page of this run may be written."""
        if not self.per_day:
            return True
        if self._is_allowed(chain):
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
        chain = self._chains.get(number)
        if chain is None:
            return False
        if chain.verdict is _Verdict.OPEN:
            self._decide(chain)
        return chain.verdict is _Verdict.ALLOWED

    def _decide(self, chain: _Chain) -> None:
        unpaid = [chain]
        while (above := self._chains.get(unpaid[-1].parent)) is not None and above.verdict is _Verdict.OPEN:
            unpaid.append(above)
        rejected = above is not None and above.verdict is _Verdict.REJECTED
        cost = sum(run.size for run in unpaid)
        self._fill()
        if rejected or cost > self._left:
            chain.verdict = _Verdict.REJECTED
            return
        self._left -= cost
        for run in unpaid:
            run.verdict = _Verdict.ALLOWED

    def _fill(self) -> None:
        now = loop_clock.now()
        self._left = min(self.per_day, self._left + (now - self._at) * self.per_day / _DAY_S)
        self._at = now
