"""The measured read rate: bytes over the time in which pages were on their way."""

from __future__ import annotations

import pytest

from pagetier.daemon.fleet.read_rate import ReadRate
from pagetier.tiers.worker_protocol import HasRead, Read

MIB = 1 << 20


def read(pages: int) -> Read:
    return Read(1, bytes(4 * pages), bytes(8 * pages), bytes(32 * pages), bytes(8 * pages))


def has_read(pages: int, first: int = 0) -> HasRead:
    return HasRead(1, first, b"\1" * pages, b"", "")


def test_single_reads_with_pauses_have_the_rate_of_the_store() -> None:
    rate = ReadRate()
    assert rate.rate == 0.0
    for second in range(10):
        rate.asked(read(1), second)
        rate.came(has_read(1), 10 * MIB, second + 0.01)
    assert rate.rate == pytest.approx(1000 * MIB)


def test_reads_in_parallel_share_the_time() -> None:
    rate = ReadRate()
    rate.asked(read(2), 0.0)
    rate.asked(read(2), 0.0)
    for at in range(1, 5):
        rate.came(has_read(1), MIB, at / 10)
    assert rate.rate == pytest.approx(10 * MIB)


def test_the_rate_follows_the_store_within_seconds_of_work() -> None:
    rate = ReadRate()
    for tenth in range(100):
        rate.asked(read(1), tenth / 10)
        rate.came(has_read(1), 100 * MIB, (tenth + 1) / 10)
    for tenth in range(100, 150):
        rate.asked(read(1), tenth / 10)
        rate.came(has_read(1), MIB, (tenth + 1) / 10)
    assert 10 * MIB < rate.rate < 50 * MIB


def test_a_store_that_hangs_or_a_lost_worker_has_no_rate() -> None:
    rate = ReadRate()
    rate.asked(read(1), 0.0)
    rate.came(has_read(1), MIB, 0.1)
    rate.asked(read(1), 1.0)
    rate.came(HasRead(1, 0, b"\0", b"", "late"), 0, 3.0)
    rate.asked(read(1), 5.0)
    rate.lost()
    rate.asked(read(1), 9.0)
    rate.came(has_read(1), MIB, 9.1)
    assert rate.rate == pytest.approx(10 * MIB)
