"""From speeds to thresholds: pure arithmetic, on tables that are noisy, have gaps, and cross several times."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations_with_replacement
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.kernels.config.copy_settings import Thresholds, WayName

ORDER: Final[tuple[WayName, ...]] = ("kernel", "staged", "dma")
"""The ways that run lengths are divided among, from the shortest runs to the longest."""

ALWAYS: Final = 1 << 40
"""A threshold for a way that is the best for the longest run that was measured, too."""

_HANDICAP: Final = np.log([1.03, 1.03, 1.0])
"""Kernels take processors from the model, DMA takes none: for 3 % or less they are not worth it."""
_UNMEASURED: Final = -50.0  # the logarithm of a speed that nobody would choose, and that still can be added up
_GRAIN: Final = 1 << 10

_Scores = npt.NDArray[np.float64]


class Speed(msgspec.Struct, frozen=True):
    """What one way did with runs of one length, in 10^9 bytes a second."""

    way: str
    run_bytes: int
    gb_per_s: float


def thresholds_of(speeds: Iterable[Speed]) -> Thresholds:
    """The thresholds under which the copies of all measured lengths are the fastest on the whole.

    Every way to divide the lengths is looked at, so that no single speed decides; what is compared is the sum of
    logarithms: a tenth lost counts alike at every length. Between the lengths where the way changes the threshold is
    where the two speeds cross. What has no speed above 0 counts as not measured. Raises ValueError if all of it is so.
    """
    usable = [speed for speed in speeds if speed.gb_per_s > 0 and np.isfinite(speed.gb_per_s) and speed.way in ORDER]
    if not usable:
        raise ValueError("no speed was measured")
    lengths = sorted({speed.run_bytes for speed in usable})
    scores = _scores(usable, lengths)
    first, second = _best_cuts(scores)
    if first == second:  # nothing is staged: kernel and DMA meet
        both = _between(lengths, scores[0] - scores[2], first)
        return Thresholds(both, both)
    kernel_below = _between(lengths, scores[0] - scores[1], first)
    return Thresholds(kernel_below, max(kernel_below, _between(lengths, scores[1] - scores[2], second)))


def way_of(thresholds: Thresholds, run_bytes: int) -> str:
    """Which way a run of this length goes."""
    if run_bytes < thresholds.kernel_below:
        return "kernel"
    return "staged" if run_bytes < thresholds.staged_below else "dma"


def _scores(speeds: Iterable[Speed], lengths: list[int]) -> _Scores:
    """[ways, lengths]: logarithms of the speeds less the handicaps; of several measurements the best."""
    scores = np.full((len(ORDER), len(lengths)), _UNMEASURED)
    for speed in speeds:
        at = ORDER.index(speed.way), lengths.index(speed.run_bytes)
        scores[at] = max(scores[at], np.log(speed.gb_per_s) - _HANDICAP[at[0]])
    return scores


def _best_cuts(scores: _Scores) -> tuple[int, int]:
    """How many lengths go by kernel, and how many by kernel or staged. Of equals what takes the fewest processors."""
    sums = np.concatenate([np.zeros((len(ORDER), 1)), scores.cumsum(axis=1)], axis=1)
    every = combinations_with_replacement(range(sums.shape[1]), 2)
    return max(every, key=lambda cuts: (round(_total(sums, *cuts), 9), -cuts[1], cuts[0]))


def _total(sums: _Scores, first: int, second: int) -> float:
    return float(sums[0, first] + sums[1, second] - sums[1, first] + sums[2, -1] - sums[2, second])


def _between(lengths: list[int], leads: _Scores, cut: int) -> int:
    """The length from which another way is better, above the last length before the cut and at most the next one.

    leads: by how much the way before the cut is better, at each length.
    """
    if cut in (0, len(lengths)):
        return 0 if cut == 0 else ALWAYS
    low, high = lengths[cut - 1], lengths[cut]
    before, behind = leads[cut - 1], -leads[cut]
    crosses = min(before, behind) >= 0 and before + behind > 0
    crossing = low * (high / low) ** (before / (before + behind) if crosses else 0.5)
    return int(min(max(round(crossing / _GRAIN), low // _GRAIN + 1) * _GRAIN, high))
