"""The ratio of paired measurements with its confidence interval."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from median_interval import median_interval

ALLOWED = 1.03
"""The ratio from which on a change counts as slower, if the whole interval lies above it."""


class PairedRatio(msgspec.Struct, frozen=True):
    """The time after a change over the time before it, with the 95 % interval from `low` to `high`."""

    value: float
    low: float
    high: float

    @property
    def slower(self) -> bool:
        """Whether the change made the operation slower by more than is allowed."""
        return self.low >= ALLOWED


def paired_ratio(ratios: Sequence[float]) -> PairedRatio:
    """Returns the median of the rounds' ratios with its interval; see median_interval().

    The order of ratios is that of their logarithms, so that "twice" and "half" are equally far from 1.
    """
    return PairedRatio(statistics.median(ratios), *median_interval(ratios))


def ratio_of_turns(before: Sequence[float], after: Sequence[float]) -> float:
    """Returns the ratio of two processes: the median over their turns, each compared with the one beside it in time."""
    return statistics.median(later / earlier for earlier, later in zip(before, after, strict=True))
