"""Tests the interval of a paired ratio on numbers whose interval is known."""

from __future__ import annotations

import random

import pytest

from comparison.paired_ratio import PairedRatio, paired_ratio, ratio_of_turns
from median_interval import median_interval


@pytest.mark.parametrize(("count", "low", "high"), [(6, 1, 6), (12, 3, 10), (20, 6, 15), (24, 7, 18), (30, 10, 21)])
def test_the_ranks_of_the_interval_are_those_of_the_binomial_table(count: int, low: int, high: int) -> None:
    ranks = list(range(1, count + 1))
    random.Random(count).shuffle(ranks)
    assert median_interval(ranks) == (low, high)


@pytest.mark.parametrize("rounds", [6, 12, 20, 31])
def test_the_interval_contains_the_truth_in_95_of_100_cases(rounds: int) -> None:
    """The distribution is skewed, with a burst of load in every tenth round."""
    numbers = random.Random(rounds)
    truth, contained = 1.0, 0
    for _ in range(4000):
        noise = [numbers.lognormvariate(0, 0.02) * numbers.choice([0.7, 1.5] + [1] * 18) for _ in range(rounds)]
        ratio = paired_ratio(noise)
        contained += ratio.low <= truth <= ratio.high
    assert 0.94 < contained / 4000 < 0.985


def test_equal_pairs_leave_no_doubt() -> None:
    assert paired_ratio([1.1] * 6) == PairedRatio(1.1, 1.1, 1.1)


@pytest.mark.parametrize(
    ("ratios", "slower"), [([1.02] * 6, False), ([1.04] * 6, True), ([1.0, 1.3, 1.1, 1.2, 1.2, 1.2], False)]
)
def test_only_an_interval_above_the_limit_is_slower(ratios: list[float], slower: bool) -> None:
    assert paired_ratio(ratios).slower == slower


def test_one_burst_of_load_does_not_hide_that_an_operation_is_slower() -> None:
    assert paired_ratio([1.1] * 11 + [0.5]).slower


def test_a_burst_of_load_that_both_sides_met_does_not_change_the_ratio() -> None:
    """Medians of each side would give 5.5 / 1, because the burst ended between the two."""
    before, after = [1.0, 1.0, 1.0, 5.0, 5.0], [1.1, 1.1, 5.5, 5.5, 5.5]
    assert ratio_of_turns(before, after) == pytest.approx(1.1)
