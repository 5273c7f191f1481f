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
    assert (noted.among(ONE, "model"), noted.among(OTHER, "model"), reasons) == (False, True, [""])
    noted.done(2, "it failed")
    assert (noted.among(OTHER, "model"), reasons[1:]) == (True, ["some flushed pages are still on disk: it failed"])
    noted.again(3)
    noted.done(3, "")
    assert not noted.among(OTHER, "model")


async def test_a_command_that_fails_fails_all_flushes_whose_pages_it_may_have() -> None:
    """The keys of a flush fill several commands, and the last one completes it."""
    reasons: list[str] = []
    noted = PendingFlushes(asyncio.get_running_loop())
    noted.wait([ONE], 1, reasons.append)
    noted.wait([OTHER], 3, reasons.append)
    noted.done(2, "it failed")
    noted.done(3, "")
    assert reasons == ["some flushed pages are still on disk: it failed"]
    noted.done(1, "")
    assert (noted.among(ONE, "model"), noted.among(OTHER, "model"), reasons[1:]) == (False, True, [""])


@pytest.mark.parametrize("wanted", ["model", OTHER.hex()[:8]])
async def test_a_flush_is_remembered_for_namespaces_that_no_worker_has_reported(wanted: str) -> None:
    noted = PendingFlushes(asyncio.get_running_loop())
    noted.keep([], wanted)
    assert noted.among(OTHER, "model") and not noted.among(ONE, "another")
    noted.again(1)
    assert noted.among(OTHER, "model"), "the worker has not dropped them"
    noted.done(1, "")
    assert not noted.among(OTHER, "model")


async def test_a_flush_is_remembered_until_the_next_worker_has_dropped_it() -> None:
    reasons: list[str] = []
    noted = PendingFlushes(asyncio.get_running_loop())
    noted.wait([ONE], 1, reasons.append)
    noted.lost()
    noted.keep([OTHER])
    assert len(reasons) == 1 and "the disk tier is not open" in reasons[0]
    noted.again(2)
    noted.lost()
    assert noted.among(ONE, "model") and noted.among(OTHER, "model")
    noted.again(3)
    noted.done(3, "")
    assert not noted.among(ONE, "model") and not noted.among(OTHER, "model")
    noted.keep([ONE])
    noted.again(0)
    assert not noted.among(ONE, "model")


@pytest.mark.usefixtures("virtual_time")
async def test_a_flush_on_a_hanging_disk_is_reported_and_remembered() -> None:
    reasons: list[str] = []
    noted = PendingFlushes(asyncio.get_running_loop())
    noted.wait([ONE], 1, reasons.append)
    await loop_clock.pause(0.99 * DROP_TIMEOUT_S)
    assert not reasons
    await loop_clock.pause(0.02 * DROP_TIMEOUT_S)
    assert len(reasons) == 1 and "the disk has not answered" in reasons[0]
    assert noted.among(ONE, "model")
    noted.done(1, "")
    assert len(reasons) == 1 and not noted.among(ONE, "model")


async def test_too_many_flushed_namespaces_count_as_all() -> None:
    reasons: list[str] = []
    noted = PendingFlushes(asyncio.get_running_loop(), 64)
    noted.wait(None, 1, reasons.append)
    assert noted.among(ONE, "model") and noted.among(OTHER, "model")
    noted.done(1, "")
    noted.keep([number.to_bytes(KEY_BYTES, "little") for number in range(64)])
    assert not noted.among(ONE, "model")
    noted.keep([OTHER])
    assert noted.among(ONE, "model")
