"""Tests whether calls took longer at the end than at the beginning, relative to a fixed reference work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from soak.latency_histogram import Counts, quantile

SHARES: Final = (0.5, 0.99, 0.999)
MARGIN: Final = 1.25
_DRAWS: Final = 4000
_BETWEEN: Final = (0.5, 99.5)


class Ratio(msgspec.Struct, frozen=True):
    """The ratio of the end to the beginning, from medians over windows, with its 99 % interval from low to high."""

    value: float
    low: float
    high: float


class Windows(msgspec.Struct, frozen=True):
    """The first and the last windows, each with the counts of calls and of the reference work."""

    first: Sequence[Counts]
    last: Sequence[Counts]
    first_control: Sequence[Counts]
    last_control: Sequence[Counts]


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of one quantile of one kind of call.

    Attributes:
        first: The median over the first windows in seconds; `last` over the last ones.
        calls: The number of calls timed in both parts.
        ratio: The ratio of the calls.
        machine: The ratio of the reference work.
        beside: The ratio of the calls in units of the reference work of the same window, which distinguishes a slower
            cache from a slower machine.
    """

    call: str
    share: float
    first: float
    last: float
    calls: int
    ratio: Ratio
    machine: Ratio
    beside: Ratio

    @property
    def equal(self) -> bool:
        """Whether it is not slower by more than the margin, both by the clock and relative to the reference work."""
        return not min(self.ratio.low, self.beside.low) > MARGIN


def drift(call: str, share: float, windows: Windows, seed: int = 0) -> Drift:
    """Returns the comparison, with intervals from bootstrap samples of the windows, each with its reference work."""
    first, last = (_logs(part, share) for part in (windows.first, windows.last))
    first_control, last_control = (_logs(part, share) for part in (windows.first_control, windows.last_control))
    rng = np.random.default_rng(seed)
    return Drift(
        call=call,
        share=share,
        first=math.exp(float(np.median(first))),
        last=math.exp(float(np.median(last))),
        calls=int(sum(counts.sum() for counts in (*windows.first, *windows.last))),
        ratio=_ratio(first, last, rng),
        machine=_ratio(first_control, last_control, rng),
        beside=_ratio(first - first_control, last - last_control, rng),
    )


def _logs(windows: Sequence[Counts], share: float) -> np.ndarray:
    return np.log([quantile(counts, share) for counts in windows])


def _ratio(first: np.ndarray, last: np.ndarray, rng: np.random.Generator) -> Ratio:
    """Returns the ratio of logarithms, one a window."""
    drawn = _medians(last, rng) - _medians(first, rng)
    low, high = np.exp(np.percentile(drawn, _BETWEEN))
    return Ratio(math.exp(float(np.median(last) - np.median(first))), float(low), float(high))


def _medians(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    drawn = rng.choice(values, (_DRAWS, len(values)))
    return np.asarray(np.median(drawn, axis=1))
