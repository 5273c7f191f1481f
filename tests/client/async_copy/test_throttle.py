"""Limits on copying: the measured rate, the backlog and the bandwidth cap."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pagetier.client.async_copy.throttle import BandwidthCap, CopyBacklog, Rate


def test_a_rate_follows_what_is_measured() -> None:
    rate = Rate()
    for _ in range(100):
        rate.record(10**8, 0.1)
    assert rate.value == pytest.approx(1e9, rel=0.01)
    rate.record(10**8, 10.0)
    assert rate.value == pytest.approx(1e7, rel=0.5)
    rate.record(10**6, 0.0)
    assert 0 < rate.value < math.inf


def test_a_backlog_accepts_seconds_of_work_from_the_first_page_on() -> None:
    rate = Rate()
    rate.value = 1000.0
    backlog, sizes = CopyBacklog(2.0, rate, 0), np.full(5, 600, np.int64)
    assert backlog.accept(sizes) == 3 and backlog.queued == 1800
    assert backlog.accept(sizes) == 0
    backlog.release(600)
    assert backlog.accept(sizes) == 1
    backlog.release(backlog.queued)
    assert backlog.accept(np.array([10**6, 1])) == 1
    assert backlog.accept(sizes[:0]) == 0


def test_a_backlog_uses_the_cap_if_it_is_below_the_rate() -> None:
    assert CopyBacklog(2.0, Rate(), 300).accept(np.full(5, 200, np.int64)) == 3


def test_a_bandwidth_cap_is_exceeded_by_at_most_one_piece() -> None:
    pace, now, begun = BandwidthCap(100), 0.0, []
    for _ in range(400):
        if not pace.delay(now):
            pace.spend(7, now)
            begun.append(now)
        now += 0.01
    for at, start in enumerate(begun):
        for count, end in enumerate(begun[at:], 1):
            assert count * 7 <= 100 * (end - start) + 7 + 1e-6
    assert len(begun) * 7 == pytest.approx(400, rel=0.2)
    assert BandwidthCap(0).delay(now) == 0
