"""The confidence interval of a median."""

from __future__ import annotations

import math
from collections.abc import Sequence


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the values between which the median lies with at least 95 %, whatever the distribution is.

    The number of values below the median is binomial with p = 1/2, so a pair of order statistics is the interval (Hahn
    and Meeker, Statistical Intervals, section 5.2). Some extreme values do not widen it, unlike that of a mean. With
    fewer than six values it goes from the smallest to the largest one and holds less than 95 %.
    """
    ordered = sorted(values)
    count, rank, below = len(ordered), 0, 0.0
    while (below := below + math.comb(count, rank) / 2**count) <= 0.025:
        rank += 1
    first = max(rank - 1, 0)
    return ordered[first], ordered[count - 1 - first]
