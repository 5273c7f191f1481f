"""A histogram of durations, cheap enough for every request. Imports little, since every daemon needs it."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final

import msgspec

# From a reservation of one page to one that waits for the disk.
SECONDS: Final = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1, 1.0)


class Histogram(msgspec.Struct):
    """Counts by upper bound, as in Prometheus; the bounds ascend. Not thread-safe.

    Attributes:
        bounds: The upper bounds.
        sum: The sum of all values.
        counts: For each bound the values up to it and above the one before it; at last those above all bounds.
    """

    bounds: tuple[float, ...] = SECONDS
    sum: float = 0.0
    counts: list[int] = []

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Counts one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[int]:
        """Returns the number of values up to each bound, and at last the number of all values."""
        return list(accumulate(self.counts))
