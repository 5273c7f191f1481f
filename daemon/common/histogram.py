"""How long something took, sorted into buckets: cheap enough for every request. Light: always there."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

# from a reservation of one page to one that waits for the disk
SECONDS: Final = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1, 1.0)


class Histogram:
    """Counts by upper bound, as Prometheus has them; bounds rise. Not for two threads."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """One more."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[int]:
        """How many were at most each bound, and how many there were at all."""
        return list(accumulate(self._counts))
