"""Tests how the rate of stores follows reservations and time."""

from __future__ import annotations

from array import array

import pytest

from pagetier.daemon.disk.store_rate import StoreRate
from pagetier.shm._core import ReserveOutcome
from virtual_time_loop import OwnTimeLoop

GRANTED, PRESENT = int(ReserveOutcome.GRANTED), int(ReserveOutcome.PRESENT)


def test_granted_frames_count_at_once_and_are_forgotten_slowly(virtual_time: OwnTimeLoop) -> None:
    rate = StoreRate(4096)
    assert rate.frames == 0
    rate.note(bytes([GRANTED] * 7), array("Q", [10_000] * 7).tobytes())
    assert rate.frames == 18
    virtual_time.passes(1)
    assert rate.frames == 17
    virtual_time.passes(9)
    assert rate.frames == 7
    virtual_time.passes(60)
    assert rate.frames == 0


@pytest.mark.usefixtures("virtual_time")
def test_pages_that_are_not_granted_do_not_count() -> None:
    rate = StoreRate(4096)
    rate.note(bytes([PRESENT] * 3), array("Q", [4096] * 3).tobytes())
    rate.note(b"", b"")
    assert rate.frames == 0
    rate.note(bytes([PRESENT, GRANTED]), array("Q", [4096] * 2).tobytes())
    assert rate.frames == 1


@pytest.mark.usefixtures("virtual_time")
def test_pages_of_less_than_a_frame_count_as_a_frame_each() -> None:
    rate = StoreRate(4096)
    rate.note(bytes([GRANTED] * 5), array("Q", [100] * 5).tobytes())
    assert rate.frames == 5


def test_a_steady_rate_is_measured(virtual_time: OwnTimeLoop) -> None:
    rate = StoreRate(4096)
    for _ in range(1000):
        virtual_time.passes(0.1)
        rate.note(bytes([GRANTED]), array("Q", [4096]).tobytes())
    assert 95 <= rate.frames <= 105, "ten frames a second for ten seconds"
