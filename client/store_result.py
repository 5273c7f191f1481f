"""What became of each page of a store."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

from pagetier.shm._core import ReserveOutcome


class Outcome(IntEnum):
    """What became of one page of a store.

    Attributes:
        STORED: The page, or this writer's part of it, is stored.
        PRESENT: The page was in the cache already.
        PENDING: Another process is writing the page.
        REFUSED: The page was rejected and is not stored.
        LEFT_OUT: The page was not rejected, and is not stored: those in the arena are expected to be used sooner.
    """

    STORED = 0
    PRESENT = 1
    PENDING = 2
    REFUSED = 3
    LEFT_OUT = 4


_AFTER_RESERVE: Final = {
    ReserveOutcome.GRANTED: Outcome.STORED,
    ReserveOutcome.PRESENT: Outcome.PRESENT,
    ReserveOutcome.PENDING: Outcome.PENDING,
    ReserveOutcome.REFUSED_FULL: Outcome.REFUSED,
    ReserveOutcome.REFUSED_SIZE: Outcome.REFUSED,
    ReserveOutcome.LEFT_OUT: Outcome.LEFT_OUT,
}
CODES: Final = bytes.maketrans(bytes(_AFTER_RESERVE), bytes(_AFTER_RESERVE.values()))
"""Translates the daemon's outcomes to codes. A granted page counts as stored unless its writer fails."""


class StoreResult(msgspec.Struct, frozen=True):
    """What became of each page of a store, in the order of the keys. len() is the number of pages.

    Attributes:
        codes: One byte for each page, an Outcome.
        reason: Why pages were rejected; empty if none was. Pages that were left out have no reason.
    """

    codes: bytes
    reason: str = ""

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcome of each page."""
        return [Outcome(code) for code in self.codes]

    @property
    def stored(self) -> int:
        """The number of pages that are stored. The next match finds them once all of their parts are stored."""
        return self.codes.count(Outcome.STORED)

    @property
    def present(self) -> int:
        """The number of pages that were in the cache already."""
        return self.codes.count(Outcome.PRESENT)

    @property
    def pending(self) -> int:
        """The number of pages that another process is writing."""
        return self.codes.count(Outcome.PENDING)

    @property
    def refused(self) -> int:
        """The number of pages that were rejected. Pages that were left out do not count."""
        return self.codes.count(Outcome.REFUSED)

    @property
    def left_out(self) -> int:
        """The number of pages that are not stored, because those in the arena are expected to be used sooner."""
        return self.codes.count(Outcome.LEFT_OUT)

    def __len__(self) -> int:
        return len(self.codes)

    def __repr__(self) -> str:
        why = f": {self.reason}" if self.reason else ""
        if not self.codes:
            return f"<StoreResult of no full page{why}>"
        left_out = f", {self.left_out} left out" if self.left_out else ""
        return (
            f"<StoreResult {self.stored} stored, {self.present} present, {self.pending} pending,"
            f" {self.refused} refused{left_out}{why}>"
        )
