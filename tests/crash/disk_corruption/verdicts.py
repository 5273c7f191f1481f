"""A damaged tier is used as a worker uses it, and judged: exact bytes or a miss, and in the end it works again."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import msgspec

from oracle.checker import Kind, Violation
from pagetier.tiers.base import Outgoing, ReadOutcome, TierError, Written
from pagetier.tiers.lmdb import LmdbTier
from power_loss.constants import Terms
from power_loss.reopening import Looker, after_a_restart, prove_here
from power_loss.workload import outgoing

NEWCOMERS = range(900_000, 900_006)
_SPOILT = 2  # newcomers: what a damaged list calls free may be another's, and both are found damaged when they are read
_SOME = 6  # every so-manieth page is dropped without having been read


class Moment(StrEnum):
    """When it happens."""

    CLOSED = "while nobody has it open"
    OPEN = "while it is open"
    DOWN = "while the host is down, after power was lost"


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's life. how: the tier's line; ended: by which TierError, "" if by itself.

    listed, exact: pages; damaged: how many it counted.
    """

    how: str = ""
    ended: str = ""
    listed: int = 0
    exact: int = 0
    damaged: int = 0
    violations: list[Violation] = []


class Use:
    """All that a worker does with a tier, in its order. harm: what happens to the file while it is open."""

    def __init__(self, folder: Path, terms: Terms, harm: Callable[[], None]) -> None:
        self._folder = folder
        self._terms = terms
        self._harm = harm
        self._listed = self._exact = self._damaged = 0
        self._how = ""
        self._violations: list[Violation] = []

    def live(self) -> Seen:
        """From opening to closing."""
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
            listed=self._listed,
            exact=self._exact,
            damaged=self._damaged,
            violations=self._violations,
        )

    def _work(self, tier: LmdbTier) -> None:
        looker = Looker(tier, self._terms.frame)
        self._violations = looker.violations
        self._how = tier.state().opened
        self._harm()
        sizes = looker.listed()
        self._listed = len(sizes)
        unread = list(sizes)[::_SOME]
        self._write(tier, unread, [])
        held = self._look(looker, {key: size for key, size in sizes.items() if key not in unread})
        self._exact = len(held)
        newcomers = [outgoing(number) for number in NEWCOMERS]
        written = self._write(tier, held[:20], newcomers)
        listed = looker.listed()
        there = self._look(looker, listed)
        if not all(written.stored):
            looker.blame(Kind.CRASH, f"it does not go on: {set(written.reasons)}")
        missing = [page.key for page in newcomers if page.key not in there]
        if len(missing) > _SPOILT or not listed.keys() >= set(missing):
            for key in missing:
                looker.blame(Kind.LOST, "it came after the damage", key)
        tier.sync()
        self._damaged = tier.state().damaged

    def _look(self, looker: Looker, sizes: dict[bytes, int]) -> list[bytes]:
        before = looker.tier.state().damaged
        outcomes = {key: looker.outcome(key, size) for key, size in sizes.items()}
        damaged = sum(outcome is ReadOutcome.DAMAGED for outcome in outcomes.values())
        if looker.tier.state().damaged - before != damaged:
            looker.blame(
                Kind.INTEGRITY, f"{damaged} pages were damaged, {looker.tier.state().damaged - before} counted"
            )
        return [key for key, outcome in outcomes.items() if outcome is ReadOutcome.EXACT]

    def _write(self, tier: LmdbTier, drops: list[bytes], pages: list[Outgoing]) -> Written:
        """As a worker's thread does: what it does not expect ends the worker, and nobody trusts the tier after."""
        try:
            return tier.write(drops, pages)
        except (TierError, SystemError) as error:
            tier.distrust()
            raise TierError(str(error)) from error


def lived(folder: Path, terms: Terms, moment: Moment, harm: Callable[[], None], boot: Path) -> bytes:
    """Of a child: Seen, in JSON. harm: to the file, for when it is open."""
    prove_here()
    if moment is Moment.DOWN:
        after_a_restart(boot)
    use = Use(folder, terms, harm if moment is Moment.OPEN else _nothing)
    return msgspec.json.encode(use.live())


def _nothing() -> None:
    """There is no harm."""
