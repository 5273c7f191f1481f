"""Tests that a flush is remembered until the disk has dropped its pages, and that its client gets one response."""

from __future__ import annotations

import asyncio

import pytest

from pagetier.daemon.common import loop_clock
from pagetier.daemon.disk.pending_flushes import DROP_TIMEOUT_S, PendingFlushes
from pagetier.shm._core import KEY_BYTES

ONE, OTHER = b"1" * KEY_BYTES, b"2" * KEY_BYTES


async def test_a_flush_is_remembered_until_its_order_is_completed() -> None:
    reasons: list[str] = []
    noted = PendingFlushes(asyncio.get_running_loop())
    noted.wait([ONE], 1, reasons.append)
    noted.wait([OTHER], 2, reasons.append)
    noted.done(1, "")
    assert (noted.among(ONE), noted.among(OTHER), reasons) == (False, True, [""])
    noted.done(2, "it failed")
    assert (noted.among(OTHER), reasons[1:]) == (True, ["some flushed pages are still on disk: it failed"])
    noted.again(3)
    noted.done(3, "")
    assert not noted.among(OTHER)


async def test_a_flush_is_remembered_until_the_next_worker_has_dropped_it() -> None:
    reasons: list[str] = []
    noted = PendingFlushes(asyncio.get_running_loop())
    noted.wait([ONE], 1, reasons.append)
    noted.lost()
    noted.keep([OTHER], reasons.append)
    assert len(reasons) == 2
    assert all("the disk tier is not open" in one for one in reasons)
    noted.again(2)
    noted.lost()
    assert noted.among(ONE) and noted.among(OTHER)
    noted.again(3)
    noted.done(3, "")
    assert not noted.among(ONE) and not noted.among(OTHER)
    noted.keep([ONE], reasons.append)
    noted.again(0)
    assert not noted.among(ONE)


@pytest.mark.usefixtures("virtual_time")
async def test_a_flush_on_a_hanging_disk_is_reported_and_remembered() -> None:
    reasons: list[str] = []
    noted = PendingFlushes(asyncio.get_running_loop())
    noted.wait([ONE], 1, reasons.append)
    await loop_clock.pause(0.99 * DROP_TIMEOUT_S)
    assert not reasons
    await loop_clock.pause(0.02 * DROP_TIMEOUT_S)
    assert len(reasons) == 1 and "the disk has not answered" in reasons[0]
    assert noted.among(ONE)
    noted.done(1, "")
    assert len(reasons) == 1 and not noted.among(ONE)


async def test_too_many_flushed_namespaces_count_as_all() -> None:
    reasons: list[str] = []
    noted = PendingFlushes(asyncio.get_running_loop(), 64)
    noted.wait(None, 1, reasons.append)
    assert noted.among(ONE) and noted.among(OTHER)
    noted.done(1, "")
    noted.keep([number.to_bytes(KEY_BYTES, "little") for number in range(64)], reasons.append)
    assert not noted.among(ONE)
    noted.keep([OTHER], reasons.append)
    assert noted.among(ONE)
