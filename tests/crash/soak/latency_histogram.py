"""How long calls took, counted by duration in memory that outlives who counted."""

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
"""How often each duration was seen: a number for each step of the scale below."""

_LEAST_S: Final = 1e-7
_OCTAVES: Final = 28
_STEPS: Final = 32
BUCKETS: Final = _OCTAVES * _STEPS


class Times:
    """Anonymous memory that forked processes share: a scale for each seat and kind of call, written by its seat alone.

    Durations are told apart by 2.2 %, from 100 ns to 26 s; what is beyond counts as the last.
    """

    def __init__(self, seats: int, kinds: int) -> None:
        self._memory = mmap.mmap(-1, seats * kinds * BUCKETS * 8)
        self._counts = np.frombuffer(self._memory, dtype=np.int64).reshape(seats, kinds, BUCKETS)

    def note(self, seat: int, kind: int, seconds: float) -> None:
        """One call took so long."""
        self._counts[seat, kind, bucket_of(seconds)] += 1

    def timed(self, seat: int, kind: int, call: Callable[[], _T]) -> _T:
        """Does it, and notes how long it took."""
        began = time.perf_counter()
        done = call()
        self.note(seat, kind, time.perf_counter() - began)
        return done

    def counts(self) -> Counts:
        """So far: by kind, all seats together. The caller's own."""
        return np.asarray(self._counts.sum(axis=0))


def bucket_of(seconds: float) -> int:
    """The step of the scale."""
    if seconds <= _LEAST_S:
        return 0
    return min(BUCKETS - 1, int(_STEPS * math.log2(seconds / _LEAST_S)))


def quantile(counts: Counts, share: float) -> float:
    """Seconds, below which so large a share of the calls stayed; nan where there were none."""
    total = int(counts.sum())
    if not total:
        return math.nan
    sums = np.cumsum(counts)
    rank = share * total
    at = min(int(np.searchsorted(sums, rank)), BUCKETS - 1)
    into = (rank - float(sums[at] - counts[at])) / float(max(1, counts[at]))
    return float(_LEAST_S * 2 ** ((at + into) / _STEPS))


def longest(counts: Counts) -> float:
    """Seconds, a little more than the longest call took; 0 where there were none."""
    used = np.flatnonzero(counts)
    return float(_LEAST_S * 2 ** ((int(used[-1]) + 1) / _STEPS)) if len(used) else 0.0
