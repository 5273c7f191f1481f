"""Whether something grows: the slope of a series with its interval, by Theil and Sen, over lives that begin anew."""

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
    """A value at a moment, in seconds, of one life: a process that is replaced begins anew, and so does its memory."""

    at: float
    life: int
    value: float


class Slope(msgspec.Struct, frozen=True):
    """How fast something grows, an hour; with 99 % between low and high, which are infinite where points are few."""

    each_hour: float
    low: float
    high: float
    points: int


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one series. first, last: medians of the first and the last tenth of all points.

    span: of the longest life, in hours. proven: that it has grown by so much in a life as long as that is as good as
    sure. limit: more is a leak.
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
        """Whether it keeps the limit."""
        return self.proven <= self.limit


def thinned(points: Iterable[Point], every: float, skip: float) -> list[Point]:
    """Medians of pieces of time, so that neighbours are not the same moment told twice; without how lives begin.

    every, skip: seconds.
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
    """The median of the slopes of all pairs within a life; its interval is Sen's, with Kendall's variances added up."""
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
    """limit: by how much it may grow in the longest life, in the unit."""
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
    """slopes: in order."""
    if not len(slopes):
        return Slope(0.0, -math.inf, math.inf, points)
    low, high = round((len(slopes) - width) / 2), round((len(slopes) + width) / 2)
    return Slope(
        float(np.median(slopes)),
        float(slopes[low]) if low >= 0 else -math.inf,
        float(slopes[high]) if high < len(slopes) else math.inf,
        points,
    )
