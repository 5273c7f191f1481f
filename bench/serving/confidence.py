"""A median of pairs with its confidence interval."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from measure import REPORTED, Goal, Result, at_least, at_most
from median_interval import median_interval
from results_file import row_of


class Spread(Result, frozen=True, kw_only=True):
    """A median whose 95 % interval is `low` to `high`, from order statistics, so for any distribution.

    Attributes:
        pairs: The number of values, each from two measurements made one after the other.
        judged: Which of the three numbers must meet the goal.
    """

    low: float
    high: float
    pairs: int
    judged: Literal["value", "low", "high"]

    def row(self) -> dict[str, Any]:
        """Returns the result for JSON."""
        return row_of(self) | {"met": self.goal.met(getattr(self, self.judged)) if self.goal.sign else None}


class Claim(msgspec.Struct, frozen=True):
    """The claim about a ratio; see Spread."""

    goal: Goal
    judged: Literal["value", "low", "high"]


NO_CLAIM = Claim(REPORTED, "value")
AHEAD = Claim(at_least(1), "low")
NOT_SLOWER = Claim(at_most(1), "low")
NOT_LESS = Claim(at_least(1), "high")


def spread(name: str, values: Sequence[float], claim: Claim, against: str) -> Spread:
    """Returns the median and interval of ratios."""
    low, high = median_interval(values)
    return Spread(
        name,
        statistics.median(values),
        "x",
        against,
        claim.goal,
        low=low,
        high=high,
        pairs=len(values),
        judged=claim.judged,
    )


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Returns the ratio of each pair."""
    return [one / other for one, other in zip(above, below, strict=True)]
