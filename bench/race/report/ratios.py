"""pagetier beside each rival: paired ratios with their intervals, and what they prove."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from enum import Enum

import msgspec

from median_interval import median_interval
from race.contestants.registry import PAGETIER
from race.results import Figures, Line


class Verdict(Enum):
    """What an interval proves."""

    AHEAD = "ahead"
    BEHIND = "behind"
    OPEN = "undecided"


class Comparison(msgspec.Struct, frozen=True):
    """pagetier beside a rival in one case: how many times better it is, with the 95 % interval over the rounds."""

    figures: Figures
    rival: str
    value: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """Whether the whole interval is on one side of 1."""
        if self.low > 1:
            return Verdict.AHEAD
        return Verdict.BEHIND if self.high < 1 else Verdict.OPEN


def compare(figures: Figures, rival: str) -> Comparison:
    """Returns the ratio of pagetier to a rival over the rounds that both have, above 1 where pagetier is better."""
    pairs = list(zip(figures.rounds[PAGETIER], figures.rounds[rival], strict=False))
    ratios = [other / ours if figures.best == "low" else ours / other for ours, other in pairs if ours and other]
    return Comparison(figures, rival, statistics.median(ratios), *median_interval(ratios))


def rivals_of(figures: Figures) -> list[str]:
    """Returns the other systems of a case that have values."""
    return [name for name, rounds in figures.rounds.items() if name != PAGETIER and any(rounds)]


def all_ratios(lines: Sequence[Line]) -> Iterator[Comparison]:
    """Yields pagetier beside every rival in every case."""
    for line in lines:
        if isinstance(line, Figures) and PAGETIER in line.rounds:
            yield from (compare(line, rival) for rival in rivals_of(line))
