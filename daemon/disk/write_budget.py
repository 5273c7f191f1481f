"""How many bytes may be written to disk a day: given to whole prefixes, as a page needs those before it."""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec

from pagetier.daemon.disk.status import BudgetReport

_DAY_S: Final = 86400.0
_MOST_CHAINS: Final = 1 << 20
_GRANTED: Final = 0


class _Verdict(Enum):
    OPEN = 0
    ADMITTED = 1
    REJECTED = 2


class _Chain(msgspec.Struct):
    """A run of pages that were granted together, behind those of `parent` (0: at the head of a prompt)."""

    parent: int
    size: int
    verdict: _Verdict = _Verdict.OPEN


class Budget:
    """A bucket that fills evenly over the day and holds a day's bytes; full at first. 0 bytes a day: no limit.

    The first page of a run that is to be written pays for the whole run, and for the runs before it that were not paid
    for. If the bucket has not enough the run is rejected, and all that follow it. Runs that are not known any more, as
    they are older than this daemon, are not written.
    """

    def __init__(self, per_day: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_day = per_day
        self._clock = clock
        self._left = float(per_day)
        self._at = clock()
        self._spared_bytes = 0
        self._chains: OrderedDict[int, _Chain] = OrderedDict()

    def note(self, outcomes: bytes, chains: bytes, sizes: bytes) -> None:
        """What was granted, after a reservation: an array each, a page each, head first."""
        granted = [i for i, outcome in enumerate(outcomes) if outcome == _GRANTED]
        if not granted:
            return
        numbers, nbytes = array("I", chains), array("Q", sizes)
        first = granted[0]
        parent = numbers[first - 1] if first else 0
        # a parent that nobody knows is a prefix that is not there: a chain of its own that is never admitted
        self._chains[numbers[first]] = _Chain(parent, sum(nbytes[i] for i in granted))
        if first and parent not in self._chains:
            self._chains[numbers[first]].verdict = _Verdict.REJECTED
        while len(self._chains) > _MOST_CHAINS:
            self._chains.popitem(last=False)

    def admits(self, chain: int, size: int) -> bool:
        """Whether a page of this run may be written."""
        if not self.per_day:
            return True
        if self._admitted(chain):
            return True
        self._spared_bytes += size
        return False

    def spend(self, size: int) -> None:
        """More was written than was admitted: trees and padding, or what an administrator told to be written.

        What is owed is paid back by the coming hours.
        """
        self._left -= size

    def report(self) -> BudgetReport | None:
        """For people."""
        if not self.per_day:
            return None
        self._fill()
        return BudgetReport(per_day=self.per_day, left=max(0, int(self._left)), spared_bytes=self._spared_bytes)

    def _admitted(self, number: int) -> bool:
        chain = self._chains.get(number)
        if chain is None:
            return False
        if chain.verdict is _Verdict.OPEN:
            self._decide(chain)
        return chain.verdict is _Verdict.ADMITTED

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
            run.verdict = _Verdict.ADMITTED

    def _fill(self) -> None:
        now = self._clock()
        self._left = min(self.per_day, self._left + (now - self._at) * self.per_day / _DAY_S)
        self._at = now
