"""Tests whether a value grows: the Theil-Sen slope of a series with its interval, within the lives of processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

import msgspec
import numpy as np

_SURE: Final = 2.576  # of a normal distribution, for 99 %
_HOUR_S: Final = 3600.0


class Point(msgspec.Struct, frozen=True):
    """A value at a time in seconds. A process that is replaced starts a new life, with new memory."""

    at: float
    life: int
    value: float


class Slope(msgspec.Struct, frozen=True):
    """A growth rate per hour, with the 99 % interval from low to high, infinite if there are too few points."""

    each_hour: float
    low: float
    high: float
    points: int


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one series.

    Attributes:
        first: The median of the first tenth of all points; `last` of the last tenth.
        span: The longest life, in hours.
        proven: The growth in a life of that length that is proven with 99 %.
        limit: The largest growth that is no leak.
    """

    name: str
    unit: str
    first: float
    last: float
    most: float
    slope: Slope
    span: float
    proven: float
    limit: float

    @property
    def flat(self) -> bool:
        """Whether the growth stays within the limit."""
        return self.proven <= self.limit


def thinned(points: Iterable[Point], every: float, skip: float) -> list[Point]:
    """Returns medians of time slices, so that neighbouring points are independent, without the start of each life.

    `every` is the length of a slice, `skip` that of a start, both in seconds.
    """
    kept = []
    for life, its in groupby(points, lambda point: point.life):
        known = list(its)
        since = known[0].at + skip
        rest = [point for point in known if point.at >= since]
        for _, piece in groupby(rest, lambda point: int(point.at / every)):
            together = list(piece)
            values = [point.value for point in together]
            kept.append(Point(together[len(together) // 2].at, life, float(np.median(values))))
    return kept


def slope_of(points: Iterable[Point]) -> Slope:
    """Returns the median slope of all pairs within a life, with Sen's interval from the sum of Kendall's variances."""
    slopes, variance, count = [], 0.0, 0
    for its in _lives(points).values():
        at, values = (np.array([getattr(point, name) for point in its]) for name in ("at", "value"))
        one, other = np.triu_indices(len(its), 1)
        slopes.append((values[other] - values[one]) / (at[other] - at[one]))
        variance += len(its) * (len(its) - 1) * (2 * len(its) + 5) / 18
        count += len(its)
    every = np.sort(np.concatenate(slopes)) if slopes else np.empty(0)
    return _with_interval(every * _HOUR_S, _SURE * math.sqrt(variance), count)


def judged(name: str, unit: str, points: Sequence[Point], limit: float) -> Growth:
    """Returns the verdict on a series. `limit` is the growth allowed in the longest life, in the series' unit."""
    slope = slope_of(points)
    span = max((its[-1].at - its[0].at for its in _lives(points).values()), default=0.0) / _HOUR_S
    values = [point.value for point in points] or [math.nan]
    tenth = max(1, len(values) // 10)
    return Growth(
        name=name,
        unit=unit,
        first=float(np.median(values[:tenth])),
        last=float(np.median(values[-tenth:])),
        most=float(max(values)),
        slope=slope,
        span=span,
        proven=max(0.0, slope.low) * span,
        limit=limit,
    )


def _lives(points: Iterable[Point]) -> Mapping[int, list[Point]]:
    lives: dict[int, list[Point]] = {}
    for point in points:
        lives.setdefault(point.life, []).append(point)
    return {life: its for life, its in lives.items() if len(its) > 1}


def _with_interval(slopes: np.ndarray, width: float, points: int) -> Slope:
    """Returns the median slope with its interval; `slopes` are sorted."""
    if not len(slopes):
        return Slope(0.0, -math.inf, math.inf, points)
    low, high = round((len(slopes) - width) / 2), round((len(slopes) + width) / 2)
    return Slope(
        float(np.median(slopes)),
        float(slopes[low]) if low >= 0 else -math.inf,
        float(slopes[high]) if high < len(slopes) else math.inf,
        points,
    )
