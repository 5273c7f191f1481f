"""Computes thresholds from speeds, which may be noisy, have gaps, and cross several times."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations_with_replacement
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.kernels.config.copy_settings import PathName, Thresholds

COPY_PATHS: Final[tuple[PathName, ...]] = ("kernel", "staged", "dma")
"""The paths to which run lengths are assigned, from the shortest runs to the longest."""

ALWAYS: Final = 1 << 40
"""The threshold of a copy path that is the fastest for the longest measured run, too."""

_HANDICAP: Final = np.log([1.03, 1.03, 1.0])
"""Kernels use processors that the model needs, DMA does not: a gain of 3 % or less is not worth it."""
_UNMEASURED: Final = -50.0  # the logarithm of a speed that is never chosen but can still be added
_GRAIN: Final = 1 << 10

_Scores = npt.NDArray[np.float64]


class Speed(msgspec.Struct, frozen=True):
    """The speed of one copy path with runs of one length, in 10^9 bytes a second."""

    path: str
    run_bytes: int
    gb_per_s: float


def thresholds_of(speeds: Iterable[Speed]) -> Thresholds:
    """Returns the thresholds with which the copies of all measured lengths are the fastest on the whole.

    All divisions of the lengths are compared by the sum of the logarithms of their speeds: no single speed decides, and
    the same relative loss counts alike at every length. A threshold lies where the two speeds cross, between the
    lengths where the path changes. Speeds that are not above 0 count as not measured.

    Raises:
        ValueError: No speed was measured.
    """
    usable = [
        speed for speed in speeds if speed.gb_per_s > 0 and np.isfinite(speed.gb_per_s) and speed.path in COPY_PATHS
    ]
    if not usable:
        raise ValueError("no speed was measured")
    lengths = sorted({speed.run_bytes for speed in usable})
    scores = _scores(usable, lengths)
    first, second = _best_cuts(scores)
    if first == second:  # no length is staged: kernel and DMA are neighbours
        both = _between(lengths, scores[0] - scores[2], first)
        return Thresholds(both, both)
    kernel_below = _between(lengths, scores[0] - scores[1], first)
    return Thresholds(kernel_below, max(kernel_below, _between(lengths, scores[1] - scores[2], second)))


def path_of(thresholds: Thresholds, run_bytes: int) -> str:
    """Returns the copy path of runs of this length."""
    if run_bytes < thresholds.kernel_below:
        return "kernel"
    return "staged" if run_bytes < thresholds.staged_below else "dma"


def _scores(speeds: Iterable[Speed], lengths: list[int]) -> _Scores:
    """Returns [paths, lengths]: logarithms of the best measured speeds, less the handicaps."""
    scores = np.full((len(COPY_PATHS), len(lengths)), _UNMEASURED)
    for speed in speeds:
        at = COPY_PATHS.index(speed.path), lengths.index(speed.run_bytes)
        scores[at] = max(scores[at], np.log(speed.gb_per_s) - _HANDICAP[at[0]])
    return scores


def _best_cuts(scores: _Scores) -> tuple[int, int]:
    """Returns how many lengths go by kernel, and how many by kernel or staged.

    Among equal divisions it takes the one that uses the fewest processors.
    """
    sums = np.concatenate([np.zeros((len(COPY_PATHS), 1)), scores.cumsum(axis=1)], axis=1)
    every = combinations_with_replacement(range(sums.shape[1]), 2)
    return max(every, key=lambda cuts: (round(_total(sums, *cuts), 9), -cuts[1], cuts[0]))


def _total(sums: _Scores, first: int, second: int) -> float:
    return float(sums[0, first] + sums[1, second] - sums[1, first] + sums[2, -1] - sums[2, second])


def _between(lengths: list[int], leads: _Scores, cut: int) -> int:
    """Returns the length from which the next path is faster.

    It is above the last length before the cut and at most the first one after it.

    Args:
        lengths: The measured lengths.
        leads: By how much the path before the cut is faster, at each length.
        cut: The number of lengths before the cut.
    """
    if cut in (0, len(lengths)):
        return 0 if cut == 0 else ALWAYS
    low, high = lengths[cut - 1], lengths[cut]
    before, after = leads[cut - 1], -leads[cut]
    crosses = min(before, after) >= 0 and before + after > 0
    crossing = low * (high / low) ** (before / (before + after) if crosses else 0.5)
    return int(min(max(round(crossing / _GRAIN), low // _GRAIN + 1) * _GRAIN, high))
