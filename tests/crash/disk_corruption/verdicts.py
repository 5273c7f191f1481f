"""Uses a damaged tier as a worker does and judges it: each page is exact or a miss, and in the end the tier works."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import msgspec

from oracle.checker import Kind, Violation
from pagetier.tiers.base import Outgoing, ReadOutcome, TierError, Written
from pagetier.tiers.disk.store import DiskStore
from power_loss.reopening import NEWCOMERS, PageReader, after_a_restart, prove_here
from power_loss.workload import Terms, outgoing

_MOST_LOST = 2  # new pages: a page of a damaged free list may be in use, so that both users are found corrupt when read
_UNREAD = 6  # one of this many pages is dropped without having been read


class Moment(StrEnum):
    """The moment of the damage."""

    CLOSED = "while the tier is closed"
    OPEN = "while the tier is open"
    DOWN = "while the host is down after a power loss"


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one worker.

    Attributes:
        how: The tier's message about its opening.
        ended: The TierError that ended the worker, "" if there was none.
        exact: The number of exact pages.
        damaged: The number of pages that the tier counted as corrupt.
        violations: The broken promises.
    """

    how: str = ""
    ended: str = ""
    exact: int = 0
    damaged: int = 0
    violations: list[Violation] = []


class WorkerRun:
    """All that a worker does with a tier, in order. `harm` damages the file while it is open."""

    def __init__(self, folder: Path, terms: Terms, harm: Callable[[], None]) -> None:
        self._folder = folder
        self._terms = terms
        self._harm = harm
        self._exact = self._damaged = 0
        self._how = ""
        self._violations: list[Violation] = []

    def live(self) -> Seen:
        """Opens, uses and closes the tier, and returns the result."""
        ended = ""
        try:
            tier = self._terms.opened(self._folder)
            try:
                self._work(tier)
            finally:
                tier.close()
        except TierError as error:
            ended = str(error)
        return Seen(
            how=self._how,
            ended=ended,
            exact=self._exact,
            damaged=self._damaged,
            violations=self._violations,
        )

    def _work(self, tier: DiskStore) -> None:
        reader = PageReader(tier, self._terms.frame)
        self._violations = reader.violations
        self._how = tier.state().opened
        self._harm()
        sizes = reader.listed()
        unread = list(sizes)[::_UNREAD]
        self._write(tier, unread, [])
        pages = self._readable(reader, {key: size for key, size in sizes.items() if key not in unread})
        self._exact = len(pages)
        newcomers = [outgoing(number) for number in NEWCOMERS]
        written = self._write(tier, pages[:20], newcomers)
        listed = reader.listed()
        there = self._readable(reader, listed)
        if not all(written.stored):
            reader.blame(Kind.CRASH, f"the tier cannot be used: {set(written.reasons)}")
        missing = [page.key for page in newcomers if page.key not in there]
        if len(missing) > _MOST_LOST or not listed.keys() >= set(missing):
            for key in missing:
                reader.blame(Kind.LOST, "the page was stored after the damage", key)
        tier.sync()
        self._damaged = tier.state().damaged

    def _readable(self, reader: PageReader, sizes: dict[bytes, int]) -> list[bytes]:
        before = reader.tier.state().damaged
        outcomes = {key: reader.outcome(key, size) for key, size in sizes.items()}
        damaged = sum(outcome is ReadOutcome.DAMAGED for outcome in outcomes.values())
        if reader.tier.state().damaged - before != damaged:
            reader.blame(
                Kind.INTEGRITY, f"{damaged} pages were read as corrupt, {reader.tier.state().damaged - before} counted"
            )
        return [key for key, outcome in outcomes.items() if outcome is ReadOutcome.EXACT]

    def _write(self, tier: DiskStore, drops: list[bytes], pages: list[Outgoing]) -> Written:
        """Writes as a worker's thread does: an unexpected error ends the worker, and the tier must be verified next."""
        try:
            return tier.write(drops, pages)
        except (TierError, SystemError) as error:
            tier.distrust()
            raise TierError(str(error)) from error


def lived(folder: Path, terms: Terms, moment: Moment, harm: Callable[[], None], boot: Path) -> bytes:
    """Returns the result of a worker, for a child process, as JSON. `harm` damages the file if the moment is OPEN."""
    prove_here()
    if moment is Moment.DOWN:
        after_a_restart(boot)
    use = WorkerRun(folder, terms, harm if moment is Moment.OPEN else _nothing)
    return msgspec.json.encode(use.live())


def _nothing() -> None:
    """Does no damage."""
