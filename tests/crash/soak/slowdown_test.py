"""Whether calls took longer at the end than at the beginning; fixed work beside them tells how the machine did."""

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
    """Of the end over the beginning: medians over windows; with 99 % it is between low and high."""

    value: float
    low: float
    high: float


class Windows(msgspec.Struct, frozen=True):
    """The first and the last of them, each with what was timed in it: counts of calls, and of the fixed work beside."""

    first: Sequence[Counts]
    last: Sequence[Counts]
    first_control: Sequence[Counts]
    last_control: Sequence[Counts]


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """One quantile of one kind of call. first, last: seconds, medians over windows; calls: timed in both parts.

    ratio: of the calls themselves. machine: of the fixed work. beside: of the calls in units of the fixed work of the
    same window, which is what tells a slower cache from a slower machine.
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
        """Slower is what is so by the clock and beside the fixed work, both by more than the margin, with 99 %."""
        return not min(self.ratio.low, self.beside.low) > MARGIN


def drift(call: str, share: float, windows: Windows, seed: int = 0) -> Drift:
    """Windows are drawn anew with replacement, each with its control, to see how far chance goes."""
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
    """first, last: logarithms, one a window."""
    drawn = _medians(last, rng) - _medians(first, rng)
    low, high = np.exp(np.percentile(drawn, _BETWEEN))
    return Ratio(math.exp(float(np.median(last) - np.median(first))), float(low), float(high))


def _medians(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    drawn = rng.choice(values, (_DRAWS, len(values)))
    return np.asarray(np.median(drawn, axis=1))
