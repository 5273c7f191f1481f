"""Tests the memory that requests take while a disk hangs: nothing for answered ones, little for waiting ones."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import struct
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from typing import Self

import pytest

from anonymous_segments import DAY_NS, Memory, attach
from counted_instructions import instructions_of
from numbered_pages import FRAME, GEOMETRY, key_of
from pagetier.daemon.common import loop_clock
from pagetier.daemon.reads.lower_tier_reads import LowerTierReads
from pagetier.shm._core import KEY_BYTES, Owner, WriteRule
from pagetier.shm.page_rows import LOCATED_PAGES, PAGE_KEYS, PAGES_TO_READ, LocatedPage
from pagetier.shm.protocol import Fetch, Fetched, FetchLocated, FetchOutcome
from pagetier.tiers.worker_protocol import Command, HasRead, Read

PAGES = 40
KEYS = b"".join(map(key_of, range(PAGES)))


class Disk:
    """A disk with pages of one frame each, whose worker is the test."""

    def __init__(self, memory: Memory, owner: Owner) -> None:
        self._commands: list[Command] = []
        self._owner = owner
        owner.disk_open(1000, WriteRule.EVICTED)
        space = owner.space(bytes(KEY_BYTES), "test", 16, 0, 0)
        sizes, ticks = struct.pack(f"<{PAGES}Q", *[FRAME] * PAGES), struct.pack(f"<{PAGES}Q", *range(1, PAGES + 1))
        owner.disk_report(KEYS, sizes, struct.pack(f"<{PAGES}I", *[space] * PAGES), ticks)
        self.reads = LowerTierReads(owner, DAY_NS, asyncio.get_running_loop())
        slot = attach(owner, 1)
        self.reads.begin(0, slot, self._commands.append)
        self._worker = memory.session(slot)

    async def ask(self, keys: bytes, timeout: float) -> Fetched:
        """Returns the response to a read of these pages."""
        answer: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        self.reads.ask(Fetch(1, keys, timeout), answer.set_result)
        return await answer

    def read_all(self) -> int:
        """Completes all ordered reads and returns the number of their pages."""
        pages = 0
        for command in self._commands:
            assert isinstance(command, Read)
            chosen = list(PAGES_TO_READ.read(command.pages))
            entries, serials = array("I", [page.entry for page in chosen]), array("Q", [page.serial for page in chosen])
            read = self._worker.publish(entries, serials, 0)
            self.reads.has_read_from_disk(0, HasRead(command.number, 0, read, b"", ""))
            pages += read.count(1)
        self._commands.clear()
        self._owner.settle()
        return pages

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.retire()


@pytest.fixture
def memory() -> Iterator[tuple[Memory, Owner]]:
    made = Memory(GEOMETRY)
    owner = made.adopted()
    yield made, owner
    assert owner.check_integrity() == []
    made.close()


def kept() -> int:
    """Returns the bytes that Python has allocated."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("timeout", [0.0, 1e-6])
async def test_requests_that_were_answered_late_are_forgotten_and_their_pages_come(
    memory: tuple[Memory, Owner], timeout: float
) -> None:
    with Disk(*memory) as disk:
        await disk.ask(KEYS, timeout)
        before = kept()
        for _ in range(100):
            assert set((await disk.ask(KEYS, timeout)).outcomes) == {FetchOutcome.PENDING}
        assert kept() - before < 100 * 100
        assert disk.read_all() == PAGES
        assert set((await disk.ask(KEYS, timeout)).outcomes) == {FetchOutcome.IN_MEMORY}


@pytest.mark.usefixtures("traced")
async def test_a_repeated_key_is_read_once(memory: tuple[Memory, Owner]) -> None:
    with Disk(*memory) as disk:
        asked = key_of(0) * 20_000
        before = kept()
        waiting = asyncio.ensure_future(disk.ask(asked, math.inf))
        await loop_clock.give_way()
        assert kept() - before < 20_000 * 10
        assert disk.read_all() == 1
        assert (await waiting).outcomes == bytes([FetchOutcome.IN_MEMORY]) * 20_000


async def test_a_waiting_request_is_answered_after_another_timed_out(memory: tuple[Memory, Owner]) -> None:
    with Disk(*memory) as disk:
        waiting = asyncio.ensure_future(disk.ask(KEYS + key_of(99), math.inf))
        await loop_clock.give_way()
        assert set((await disk.ask(KEYS, 1e-6)).outcomes) == {FetchOutcome.PENDING}
        disk.read_all()
        assert (await waiting).outcomes == bytes([FetchOutcome.IN_MEMORY]) * PAGES + bytes([FetchOutcome.ABSENT])


@pytest.mark.parametrize("located", [False, True], ids=["disk", "fleet"])
async def test_pages_that_are_not_read_cost_no_step_of_python(memory: tuple[Memory, Owner], located: bool) -> None:
    """Half a million pages are one request, which no other one interrupts: only the core looks at each of them."""
    with Disk(*memory) as disk:

        async def steps(absent: int) -> int:
            keys = KEYS[: 2 * KEY_BYTES] + os.urandom(absent * KEY_BYTES)
            answers = list[Fetched]()
            ask: Callable[[], object]
            if located:
                pages = LOCATED_PAGES.pack(LocatedPage(key, 0, 0) for key in PAGE_KEYS.split(keys))
                ask = partial(disk.reads.ask_located, FetchLocated(1, pages, 0.0, ()), answers.append, ())
            else:
                ask = partial(disk.reads.ask, Fetch(1, keys, 0.0), answers.append)
            executed = instructions_of(ask)
            assert answers[0].outcomes == bytes([FetchOutcome.PENDING] * 2 + [FetchOutcome.ABSENT] * absent)
            return executed

        await steps(1)  # reads the two pages
        assert await steps(50_000) == await steps(1_000)
        assert disk.read_all() == 2


@pytest.mark.usefixtures("virtual_time")
async def test_a_request_waits_for_its_whole_timeout_and_no_longer(memory: tuple[Memory, Owner]) -> None:
    with Disk(*memory) as disk:
        waiting = asyncio.ensure_future(disk.ask(KEYS, 1.0))
        await loop_clock.pause(0.99)
        assert not waiting.done()
        await loop_clock.pause(0.02)
        assert waiting.done() and set((await waiting).outcomes) == {FetchOutcome.PENDING}
        disk.read_all()


@pytest.mark.usefixtures("virtual_time")
async def test_a_disk_that_has_hung_for_two_seconds_is_not_waited_for(memory: tuple[Memory, Owner]) -> None:
    with Disk(*memory) as disk:
        first = asyncio.ensure_future(disk.ask(KEYS, math.inf))
        await loop_clock.pause(1.99)
        second = asyncio.ensure_future(disk.ask(KEYS, math.inf))
        await loop_clock.pause(0.02)
        assert not first.done() and not second.done()
        third = asyncio.ensure_future(disk.ask(KEYS, math.inf))
        await loop_clock.give_way()
        assert third.done() and set((await third).outcomes) == {FetchOutcome.PENDING}
        disk.read_all()
        assert set((await first).outcomes + (await second).outcomes) == {FetchOutcome.IN_MEMORY}


async def test_the_end_of_a_worker_answers_only_waiting_requests(memory: tuple[Memory, Owner]) -> None:
    with Disk(*memory) as disk:
        assert set((await disk.ask(KEYS, 1e-6)).outcomes) == {FetchOutcome.PENDING}
        waiting = asyncio.ensure_future(disk.ask(KEYS, math.inf))
        await loop_clock.give_way()
        disk.reads.lost(0)
        answer = await waiting
        assert set(answer.outcomes) == {FetchOutcome.ABSENT}
        assert answer.reason == "the disk worker ended while it read the page"
