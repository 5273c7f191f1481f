"""Tests how the rate of stores follows reservations and time."""

from __future__ import annotations

import pytest

from pagetier.daemon.common import loop_clock
from pagetier.daemon.disk.write_behind import StoreRate
from virtual_time_loop import OwnTimeLoop


def test_granted_frames_count_at_once_and_are_forgotten_slowly(virtual_time: OwnTimeLoop) -> None:
    rate = StoreRate(4096)
    assert rate.frames == 0
    rate.add(7, 70_000, loop_clock.now())
    assert rate.frames == 18
    virtual_time.passes(1)
    assert rate.frames == 17
    virtual_time.passes(9)
    assert rate.frames == 7
    virtual_time.passes(60)
    assert rate.frames == 0


@pytest.mark.usefixtures("virtual_time")
def test_a_store_without_granted_pages_does_not_count() -> None:
    rate = StoreRate(4096)
    rate.add(0, 0, loop_clock.now())
    assert rate.frames == 0


@pytest.mark.usefixtures("virtual_time")
def test_pages_of_less_than_a_frame_count_as_a_frame_each() -> None:
    rate = StoreRate(4096)
    rate.add(5, 500, loop_clock.now())
    assert rate.frames == 5


def test_a_steady_rate_is_measured(virtual_time: OwnTimeLoop) -> None:
    rate = StoreRate(4096)
    for _ in range(1000):
        virtual_time.passes(0.1)
        rate.add(1, 4096, loop_clock.now())
    assert 95 <= rate.frames <= 105, "ten frames a second for ten seconds"
