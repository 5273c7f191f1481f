"""The measured rate of a store: bytes over the time in which pages were on their way."""

from __future__ import annotations

import pytest

from pagetier.tiers.busy_rate import BusyRate

MIB = 1 << 20


def test_single_pages_with_pauses_have_the_rate_of_the_store() -> None:
    rate = BusyRate()
    assert rate.rate == 0.0
    for second in range(10):
        rate.began(1, second)
        rate.ended(1, 10 * MIB, second + 0.01)
    assert rate.rate == pytest.approx(1000 * MIB)


def test_pages_in_parallel_share_the_time() -> None:
    rate = BusyRate()
    rate.began(2, 0.0)
    rate.began(2, 0.0)
    for at in range(1, 5):
        rate.ended(1, MIB, at / 10)
    assert rate.rate == pytest.approx(10 * MIB)


def test_the_rate_follows_the_store_within_seconds_of_work() -> None:
    rate = BusyRate()
    for tenth in range(100):
        rate.began(1, tenth / 10)
        rate.ended(1, 100 * MIB, (tenth + 1) / 10)
    for tenth in range(100, 150):
        rate.began(1, tenth / 10)
        rate.ended(1, MIB, (tenth + 1) / 10)
    assert 10 * MIB < rate.rate < 50 * MIB


def test_a_store_that_hangs_or_a_lost_worker_has_no_rate() -> None:
    rate = BusyRate()
    rate.began(1, 0.0)
    rate.ended(1, MIB, 0.1)
    rate.began(1, 1.0)
    rate.ended(1, 0, 3.0)
    rate.began(1, 5.0)
    rate.lost()
    rate.began(1, 9.0)
    rate.ended(1, MIB, 9.1)
    assert rate.rate == pytest.approx(10 * MIB)
