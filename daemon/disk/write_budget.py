"""Limits the bytes written to disk a day.

Whole prefixes are allowed, because a page is useless without those before it. The steps, in this order:

1. *Noted* (`note`), when the index grants a reservation: its size and the reservation that it follows. Free of charge,
   because most pages are read or evicted without a write.
2. *Charged* (`charge`), when write-behind has chosen a page. The first page pays for its whole reservation and for the
   unpaid ones before it, or the reservation is rejected for good. The next pages use up what was paid.
3. *Settled* (`spend`), when the worker reports: the bytes written minus those charged. Trees and padding cost more;
   pages that failed were charged and not written, so the difference is negative and their payment comes back.
4. *Charged again*, when a page that failed is chosen again: what was paid for it is used up or came back. The
   reservation stays allowed, because later pages of the prefix may be on disk, so the bucket may become negative.

A worker that dies reports nothing. It may have written all bytes of its commands, so they stay charged, and what
is written again is charged again.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from enum import Enum
from typing import Final

import msgspec

from pagetier.daemon.common import loop_clock
from pagetier.daemon.status.disk_report import BudgetReport
from pagetier.shm._core import ReserveOutcome, TierFlag
from pagetier.shm.page_rows import PAGE_ANSWERS, PAGE_REQUESTS

_DAY_S: Final = 86400.0
_MOST_RESERVATIONS: Final = 1 << 20


class _Verdict(Enum):
    OPEN = 0
    ALLOWED = 1
    REJECTED = 2


class _Granted(msgspec.Struct):
    """The pages of one reservation.

    Attributes:
        parent: The reservation of the page before them; 0 at the start of a prompt, or after a page on disk.
        paid: The bytes that are paid, less those of the pages that were charged since.
    """

    parent: int
    size: int
    paid: int = 0
    verdict: _Verdict = _Verdict.OPEN


class Budget:
    """A token bucket that fills evenly over the day and holds the bytes of one day.

    It starts full; 0 a day is no limit.

    If the bucket has too few bytes for a reservation and the unpaid ones before it, the reservation and all that follow
    it are rejected. A page that is on disk was paid, even if it was read back since. Other pages whose reservation is
    no longer known, because it is older than this daemon, are not written, and nothing that follows them.
    """

    def __init__(self, per_day: int) -> None:
        self.per_day = per_day
        self._left = float(per_day)
        self._at = loop_clock.now()
        self._skipped_bytes = 0
        self._granted: OrderedDict[int, _Granted] = OrderedDict()

    def note(self, pages: bytes, answers: bytes, reservations: bytes, tiers: bytes) -> None:
        """Records the outcome of a reservation.

        Args:
            pages: Reserve.pages, the first page of the prompt first.
            answers: Reserved.pages.
            reservations: The number of each page's reservation, u32.
            tiers: The tiers that have each page, u8 (TierFlag).
        """
        outcomes = [answer.outcome for answer in PAGE_ANSWERS.read(answers)]
        granted = [i for i, outcome in enumerate(outcomes) if outcome == ReserveOutcome.GRANTED]
        if not granted:
            return
        numbers, nbytes = array("I", reservations), [page.size for page in PAGE_REQUESTS.read(pages)]
        first = granted[0]
        paid = not first or bool(tiers[first - 1] & TierFlag.DISK)
        parent = 0 if paid else numbers[first - 1]
        # An unknown parent means that the prefix is not on disk: this reservation is never allowed.
        self._granted[numbers[first]] = _Granted(parent, sum(nbytes[i] for i in granted))
        if not paid and parent not in self._granted:
            self._granted[numbers[first]].verdict = _Verdict.REJECTED
        while len(self._granted) > _MOST_RESERVATIONS:
            self._granted.popitem(last=False)

    def charge(self, reservation: int, size: int) -> bool:
        """Charges a page of this reservation that is to be written.

        Returns:
            Whether it may be written. If not, it is counted as skipped.
        """
        if not self.per_day:
            return True
        granted = self._granted.get(reservation)
        if granted is None or not self._pay(granted):
            self._skipped_bytes += size
            return False
        used = min(size, granted.paid)
        granted.paid -= used
        self._fill()
        self._left -= size - used
        return True

    def spend(self, size: int) -> None:
        """Charges bytes written beyond the charged ones: trees, padding, and writes that an administrator requested.

        Negative for charged bytes that were not written. The bucket may become negative; the following hours fill it
        again.
        """
        self._fill()
        self._left -= size

    def report(self) -> BudgetReport | None:
        """Returns the state of the budget, None if there is no limit."""
        if not self.per_day:
            return None
        self._fill()
        return BudgetReport(per_day=self.per_day, left=max(0, int(self._left)), skipped_bytes=self._skipped_bytes)

    def _pay(self, granted: _Granted) -> bool:
        """Pays for a reservation unless that was tried before. Returns whether it is paid."""
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
            one.verdict, one.paid = _Verdict.ALLOWED, one.size

    def _fill(self) -> None:
        now = loop_clock.now()
        self._left = min(self.per_day, self._left + (now - self._at) * self.per_day / _DAY_S)
        self._at = now
