"""A histogram of durations, cheap enough for every request. Imports little, since every daemon needs it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

# From a reservation of one page to one that waits for the disk.
SECONDS: Final = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1, 1.0)


class Histogram:
    """Counts by upper bound, as in Prometheus; the bounds ascend. Not thread-safe."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Counts one value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[int]:
        """Returns the number of values up to each bound, and at last the number of all values."""
        return list(accumulate(self._counts))
