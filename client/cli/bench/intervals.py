"""Medians, rates and ratios with 95 % intervals, by a bootstrap over rounds and requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
"""[rounds, requests]: one measure of one system."""
_RESAMPLES: Final = 2000
_PERCENTILES: Final = (2.5, 97.5)


class Estimate(msgspec.Struct, frozen=True):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


class Bootstrap:
    """Draws rounds, and in them requests, with replacement: the same ones for all systems, so that ratios are paired.

    Args:
        seed: The seed of what is drawn.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def median(self, values: Values) -> Estimate:
        """Returns the median."""
        return self._estimate(lambda drawn: float(np.median(drawn)), values)

    def median_ratio(self, values: Values, base: Values) -> Estimate:
        """Returns the median of the ratios of two systems, request by request."""
        return self.median(values / base)

    def ratio_of_sums(self, values: Values, over: Values) -> Estimate:
        """Returns the sum of one measure over that of another, such as tokens over seconds."""
        return self._estimate(lambda drawn, base: float(drawn.sum() / base.sum()), values, over)

    def ratio_of_rates(self, seconds: Values, base_seconds: Values) -> Estimate:
        """Returns how many times faster the same work was done than in `base_seconds`."""
        return self.ratio_of_sums(base_seconds, seconds)

    def _estimate(self, statistic: Callable[..., float], *measures: Values) -> Estimate:
        generator = np.random.default_rng(self._seed)
        rounds, requests = measures[0].shape
        drawn = []
        for _ in range(_RESAMPLES):
            chosen = np.ix_(generator.integers(rounds, size=rounds), generator.integers(requests, size=requests))
            drawn.append(statistic(*(measure[chosen] for measure in measures)))
        low, high = np.percentile(drawn, _PERCENTILES).tolist()
        return Estimate(statistic(*measures), low, high)
