"""Tests whether a series grows within the lives of processes, and whether calls became slower than a reference work."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

SHARES: Final = (0.5, 0.99, 0.999)
MARGIN: Final = 1.25
_SURE: Final = 2.576  # of a normal distribution, for 99 %
_BETWEEN: Final = (0.5, 99.5)
_DRAWS: Final = 4000
_HOUR_S: Final = 3600.0


class Point(NamedTuple):
    """A value at a time in seconds. A process that is replaced starts a new life, with new memory."""

    at: float
    life: int
    value: float


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one series.

    Attributes:
        first: The median of the first tenth of all points; `last` of the last tenth.
        each_hour: The slope, with its 99 % interval from `low` to `high`; None if there are too few points.
        span: The longest life, in hours.
        proven: The growth in a life of that length that is proven with 99 %.
        limit: The largest growth that is no leak.
    """

    name: str
    unit: str
    first: float
    last: float
    most: float
    each_hour: float
    low: float | None
    high: float | None
    span: float
    proven: float
    limit: float

    @property
    def flat(self) -> bool:
        """Whether the growth stays within the limit."""
        return self.proven <= self.limit


class Ratio(msgspec.Struct, frozen=True):
    """The ratio of the end to the beginning, from medians over windows, with its 99 % interval from low to high."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, first: np.ndarray, last: np.ndarray, rng: np.random.Generator) -> Ratio:
        """Returns the ratio from logarithms, one a window, with an interval from bootstrap samples."""
        drawn = [np.median(rng.choice(part, (_DRAWS, len(part))), axis=1) for part in (first, last)]
        low, high = np.exp(np.percentile(drawn[1] - drawn[0], _BETWEEN))
        return cls(math.exp(float(np.median(last) - np.median(first))), float(low), float(high))

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of one quantile of one kind of call at the beginning and at the end.

    Attributes:
        first: The median over the first windows in seconds; `last` over the last ones.
        ratio: The ratio of the calls.
        machine: The ratio of the reference work.
        beside: The ratio of the calls in units of the reference work of the same window, which distinguishes a slower
            cache from a slower machine.
    """

    call: str
    share: float
    first: float
    last: float
    ratio: Ratio
    machine: Ratio
    beside: Ratio

    @property
    def equal(self) -> bool:
        """Whether it is not slower by more than the margin, both by the clock and relative to the reference work."""
        return min(self.ratio.low, self.beside.low) <= MARGIN


Windows = Sequence[np.ndarray]
"""The durations in seconds in each of some windows of time."""


def drift(call: str, share: float, parts: Sequence[Windows], seed: int = 0) -> Drift:
    """Returns the comparison.

    Args:
        call: The kind of call.
        share: The share of calls below the quantile.
        parts: The first and the last windows of the calls, then those of the reference work; no window is empty.
        seed: The seed of the bootstrap samples.
    """
    logs = [np.log([np.quantile(took, share) for took in windows]) for windows in parts]
    first, last, first_control, last_control = logs
    rng = np.random.default_rng(seed)
    return Drift(
        call=call,
        share=share,
        first=math.exp(float(np.median(first))),
        last=math.exp(float(np.median(last))),
        ratio=Ratio.of(first, last, rng),
        machine=Ratio.of(first_control, last_control, rng),
        beside=Ratio.of(first - first_control, last - last_control, rng),
    )


def thinned(points: Iterable[Point], every: float, skip: float) -> list[Point]:
    """Returns medians of time slices, so that neighbouring points are independent, without the start of each life.

    `every` is the length of a slice, `skip` that of a start, both in seconds.
    """
    begins: dict[int, float] = {}
    slices: dict[tuple[int, int], list[Point]] = defaultdict(list)
    for point in points:
        if point.at >= begins.setdefault(point.life, point.at) + skip:
            slices[point.life, int(point.at / every)].append(point)
    return [
        Point(its[len(its) // 2].at, life, float(np.median([point.value for point in its])))
        for (life, _), its in slices.items()
    ]


def growth(name: str, unit: str, points: Sequence[Point], limit: float) -> Growth:
    """Returns the verdict on a series. `limit` is the growth allowed in the longest life, in the series' unit."""
    lives = _lives(points)
    each_hour, low, high = _slope(lives)
    span = max((its[-1].at - its[0].at for its in lives.values()), default=0.0) / _HOUR_S
    values = [point.value for point in points] or [0.0]
    tenth = max(1, len(values) // 10)
    return Growth(
        name=name,
        unit=unit,
        first=float(np.median(values[:tenth])),
        last=float(np.median(values[-tenth:])),
        most=float(max(values)),
        each_hour=each_hour,
        low=low,
        high=high,
        span=span,
        proven=max(0.0, low or 0.0) * span,
        limit=limit,
    )


def _lives(points: Iterable[Point]) -> Mapping[int, list[Point]]:
    lives: dict[int, list[Point]] = defaultdict(list)
    for point in points:
        lives[point.life].append(point)
    return {life: its for life, its in lives.items() if len(its) > 1}


def _slope(lives: Mapping[int, Sequence[Point]]) -> tuple[float, float | None, float | None]:
    """Returns Theil's and Sen's slope an hour with its interval, from all pairs of points within a life.

    The width of the interval follows from the sum of the variances of Kendall's score in each life.
    """
    if not lives:
        return 0.0, None, None
    slopes, variance = [], 0.0
    for its in lives.values():
        at, _, values = np.array(its).T
        one, other = np.triu_indices(len(its), 1)
        slopes.append((values[other] - values[one]) / (at[other] - at[one]))
        variance += len(its) * (len(its) - 1) * (2 * len(its) + 5) / 18
    every = np.sort(np.concatenate(slopes)) * _HOUR_S
    width = _SURE * math.sqrt(variance)
    low, high = round((len(every) - width) / 2), round((len(every) + width) / 2)
    least = float(every[low]) if low >= 0 else None
    return float(np.median(every)), least, float(every[high]) if high < len(every) else None
