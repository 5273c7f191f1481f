"""Counts the durations of calls in shared memory that outlives the counting process."""

from __future__ import annotations

import math
import mmap
import time
from collections.abc import Callable
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

_T = TypeVar("_T")

Counts = npt.NDArray[np.int64]
"""The number of calls for each step of the scale of durations."""

_LEAST_S: Final = 1e-7
_OCTAVES: Final = 28
_STEPS: Final = 32
BUCKETS: Final = _OCTAVES * _STEPS


class Times:
    """Anonymous memory shared by forked processes: a histogram for each seat and kind of call, written by that seat.

    Its steps are 2.2 % apart, from 100 ns to 26 s; longer durations count in the last step.
    """

    def __init__(self, seats: int, kinds: int) -> None:
        self._memory = mmap.mmap(-1, seats * kinds * BUCKETS * 8)
        self._counts = np.frombuffer(self._memory, dtype=np.int64).reshape(seats, kinds, BUCKETS)

    def note(self, seat: int, kind: int, seconds: float) -> None:
        """Counts one call of this duration."""
        self._counts[seat, kind, bucket_of(seconds)] += 1

    def timed(self, seat: int, kind: int, call: Callable[[], _T]) -> _T:
        """Calls a function and counts its duration."""
        began = time.perf_counter()
        done = call()
        self.note(seat, kind, time.perf_counter() - began)
        return done

    def counts(self) -> Counts:
        """Returns a copy of the counts by kind, summed over all seats."""
        return np.asarray(self._counts.sum(axis=0))


def bucket_of(seconds: float) -> int:
    """Returns the step of the scale for a duration."""
    if seconds <= _LEAST_S:
        return 0
    return min(BUCKETS - 1, int(_STEPS * math.log2(seconds / _LEAST_S)))


def quantile(counts: Counts, share: float) -> float:
    """Returns the duration in seconds below which this share of the calls stayed; nan if there were none."""
    total = int(counts.sum())
    if not total:
        return math.nan
    sums = np.cumsum(counts)
    rank = share * total
    at = min(int(np.searchsorted(sums, rank)), BUCKETS - 1)
    fraction = (rank - float(sums[at] - counts[at])) / float(max(1, counts[at]))
    return float(_LEAST_S * 2 ** ((at + fraction) / _STEPS))


def longest(counts: Counts) -> float:
    """Returns an upper limit of the longest call in seconds; 0 if there were none."""
    used = np.flatnonzero(counts)
    return float(_LEAST_S * 2 ** ((int(used[-1]) + 1) / _STEPS)) if len(used) else 0.0
