"""What was flushed is remembered until the disk has dropped it, and who flushed is told once how far that is."""

from __future__ import annotations

import asyncio

import pytest

from pagetier.daemon.disk import pending_flushes
from pagetier.daemon.disk.pending_flushes import Flushes

ONE, OTHER = b"1" * 32, b"2" * 32


def test_until_its_order_is_carried_out() -> None:
    async def run() -> None:
        told: list[str] = []
        noted = Flushes(asyncio.get_running_loop())
        noted.wait([ONE], 1, told.append)
        noted.wait([OTHER], 2, told.append)
        noted.done(1, "")
        assert (noted.among(ONE), noted.among(OTHER), told) == (False, True, [""])
        noted.done(2, "it failed")
        assert (noted.among(OTHER), told[1:]) == (True, ["some flushed pages are still on disk: it failed"])
        noted.again(3)
        noted.done(3, "")
        assert not noted.among(OTHER)

    asyncio.run(run())


def test_until_the_next_worker_has_dropped_it() -> None:
    async def run() -> None:
        told: list[str] = []
        noted = Flushes(asyncio.get_running_loop())
        noted.wait([ONE], 1, told.append)
        noted.lost()
        noted.keep([OTHER], told.append)
        assert len(told) == 2
        assert all("the disk tier is not open" in one for one in told)
        noted.again(2)
        noted.lost()
        assert noted.among(ONE) and noted.among(OTHER)
        noted.again(3)
        noted.done(3, "")
        assert not noted.among(ONE) and not noted.among(OTHER)
        noted.keep([ONE], told.append)
        noted.again(0)
        assert not noted.among(ONE)

    asyncio.run(run())


def test_a_disk_that_hangs_is_told_of_and_still_has_to_drop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_flushes, "LETTING_GO_S", 0.0)

    async def run() -> None:
        told: asyncio.Queue[str] = asyncio.Queue()
        noted = Flushes(asyncio.get_running_loop())
        noted.wait([ONE], 1, told.put_nowait)
        assert "the disk has not answered" in await told.get()
        assert noted.among(ONE)
        noted.done(1, "")
        assert told.empty() and not noted.among(ONE)

    asyncio.run(run())


def test_all_and_more_than_is_remembered_one_by_one() -> None:
    async def run() -> None:
        told: list[str] = []
        noted = Flushes(asyncio.get_running_loop())
        noted.wait(None, 1, told.append)
        assert noted.among(ONE) and noted.among(OTHER)
        noted.done(1, "")
        noted.keep([number.to_bytes(32, "little") for number in range(pending_flushes._MOST)], told.append)
        assert not noted.among(ONE)
        noted.keep([OTHER], told.append)
        assert noted.among(ONE)

    asyncio.run(run())
