"""Tests that no request about a whole namespace holds the loop of the HTTP process, counted by its turns."""

from __future__ import annotations

import asyncio
import json
import os
from itertools import pairwise
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pytest

from anonymous_segments import Memory
from counted_instructions import CountedInstructions
from pagetier.daemon.config.schema import AccessOptions
from pagetier.daemon.host.peer_credentials import Caller
from pagetier.daemon.http.api import Api
from pagetier.daemon.http.channel_messages import Entrance, Settings
from pagetier.daemon.http.daemon_channel import DaemonChannel
from pagetier.daemon.http.http_connection import Request
from pagetier.daemon.http.peers import HttpCaller
from pagetier.daemon.stats.namespace_reads import NO_ROOM
from pagetier.daemon.stats.page_lookup import ENTRIES_AT_ONCE, LEFT_OUT, pages_to_read
from pagetier.daemon.status.daemon_status import DaemonStatus
from pagetier.shm._core import KEY_BYTES, LISTED_LAYOUT, Observer, WriteRule
from pagetier.shm.geometry import Geometry
from pagetier.shm.page_rows import PAGE_KEYS
from pagetier.shm.protocol import Fetched, FetchOutcome, HintPages, PagesHinted
from pagetier.shm.row_arrays import dtype_of
from seeded_random import chance

FRAME: Final = 4096
SLICE: Final = 1024  # pages of one turn
SPACE: Final = {"namespace": "model"}
CALLER: Final = HttpCaller(Entrance.SOCKET, Caller(os.getpid(), os.geteuid(), frozenset()))
PREFETCH: Final = Request("POST", "/v1/prefetch", {}, json.dumps(SPACE).encode(), CALLER)
KEEP: Final = Request("POST", "/v1/hint", {}, json.dumps(SPACE | {"hint": "keep"}).encode(), CALLER)


class Walk(NamedTuple):
    """A walk over a part of the index, and the turn of the loop in which it was."""

    turn: int
    start: int
    entries: int


class Daemon:
    """A daemon whose index has pages of one namespace that are only on disk, and which reads whatever it is asked for.

    Attributes:
        observer: Its index.
        asked: The keys of each request.
        answers: Its answers to the first requests, before it reads all pages.
        walks: All walks over the index.
        turns: The turns so far.
        longest: The most instructions in one of them.
    """

    settings = Settings(AccessOptions())

    def __init__(self, pages: int, frames: int) -> None:
        memory = Memory(Geometry(frame_bytes=FRAME, frames=frames, entries=pages + frames + 1, spaces=1))
        self._owner = memory.adopted()
        space = self._owner.space(b"s" * KEY_BYTES, "model", 16, 0, 0)
        self._owner.disk_open(pages, WriteRule.EVICTED)
        random = chance()
        sizes, spaces, ticks = np.full(pages, FRAME, "u8"), np.full(pages, space, "u4"), random.permutation(pages)
        self._owner.disk_report(random.bytes(pages * KEY_BYTES), sizes, spaces, ticks.astype("u8"))
        index, locks, _ = memory.descriptors
        self.observer = Observer(index, locks)
        self.asked: list[bytes] = []
        self.answers: list[Fetched] = []
        self.walks: list[Walk] = []
        self.turns = self.longest = 0
        self._count, self._before = CountedInstructions(), 0

    def __getattr__(self, name: str) -> Any:
        """Returns what the observer has, for which this stands too."""
        return getattr(self.observer, name)

    def pages(self, space: int, start: int = 0, entries: int = 2**32 - 1) -> bytes:
        self.walks.append(Walk(self.turns, start, entries))
        return self.observer.pages(space, start, entries)

    async def fetch(self, _user: int, keys: bytes, _timeout: float) -> Fetched:
        self.asked.append(keys)
        if self.answers:
            return self.answers.pop(0)
        return Fetched(0, bytes([FetchOutcome.IN_MEMORY]) * PAGE_KEYS.count(keys))

    async def hint(self, _user: int, _hint: HintPages) -> PagesHinted:
        return PagesHinted(0, 0, 0)

    def serve(self, *requests: Request) -> None:
        """Serves requests that come at once."""
        with self._count.counted():
            asyncio.run(self._serve(*requests))

    def prefetch(self) -> dict[str, Any]:
        """Serves a prefetch of the namespace. Returns its status at the end."""
        return asyncio.run(self._prefetch())

    async def _prefetch(self) -> dict[str, Any]:
        api = self._api()
        accepted = json.loads((await api.respond(PREFETCH)).body)
        status = {"state": "reading"}
        while status["state"] != "done":
            status = json.loads(
                (await api.respond(Request("GET", f"/v1/prefetch/{accepted['id']}", {}, b"", CALLER))).body
            )
        assert accepted["pages"] == status["pages"]
        return status

    def _api(self) -> Api:
        return Api(cast("Observer", self), cast("DaemonChannel", self), cast("Any", None), cast("Any", None))

    async def _serve(self, *requests: Request) -> None:
        api = self._api()
        self._note_turn()
        responses = await asyncio.gather(*map(api.respond, requests))
        assert all(response.status in (200, 202) for response in responses), responses

    def _note_turn(self) -> None:
        self.turns += 1
        self.longest = max(self.longest, self._count.executed - self._before)
        self._before = self._count.executed
        asyncio.get_running_loop().call_soon(self._note_turn)


def test_the_loop_has_its_turn_after_a_bounded_number_of_steps_however_many_pages_there_are() -> None:
    few, many = (Daemon(slices * SLICE, frames=slices * SLICE) for slices in (4, 16))
    few.serve(PREFETCH)
    many.serve(PREFETCH)
    assert many.turns >= 16, "one slice in a turn"
    assert 0 < many.longest < 1.1 * few.longest, f"{few.longest} instructions in a turn, then {many.longest}"


@pytest.mark.parametrize("request_", [PREFETCH, KEEP], ids=["prefetch", "keep"])
def test_the_loop_has_its_turn_after_each_slice_of_the_index(request_: Request) -> None:
    daemon = Daemon(2 * ENTRIES_AT_ONCE, frames=ENTRIES_AT_ONCE)
    daemon.serve(request_)
    slices = range(0, 3 * ENTRIES_AT_ONCE + 1, ENTRIES_AT_ONCE)
    assert [(walk.start, walk.entries) for walk in daemon.walks] == [(start, ENTRIES_AT_ONCE) for start in slices]
    assert len({walk.turn for walk in daemon.walks}) == len(slices)


def test_the_last_used_pages_are_read_of_all_slices() -> None:
    daemon = Daemon(5 * SLICE, frames=2 * SLICE)
    daemon.serve(PREFETCH)
    rows = np.frombuffer(daemon.observer.pages(0), dtype_of(LISTED_LAYOUT))
    last_used_first = rows["key"][np.argsort(rows["used_ns"])[::-1]]
    assert daemon.asked == [b"".join(key.tobytes() for key in last_used_first[: int(0.9 * 2 * SLICE)])]


def test_the_pages_of_one_namespace_are_listed_at_a_time() -> None:
    daemon = Daemon(4 * SLICE, frames=SLICE)
    daemon.serve(PREFETCH, PREFETCH, PREFETCH)
    turns = [walk.turn for walk in daemon.walks if not walk.start]
    assert len(turns) == 3
    assert all(later - earlier >= 4 for earlier, later in pairwise(turns))


def test_pages_that_have_just_left_the_disk_do_not_keep_others_of_the_namespace_from_being_read() -> None:
    daemon = Daemon(10, frames=20)
    daemon.answers = [Fetched(0, bytes([FetchOutcome.IN_MEMORY] * 3 + [FetchOutcome.ABSENT] * 7))]
    status = daemon.prefetch()
    assert list(map(PAGE_KEYS.count, daemon.asked)) == [10, 6]
    assert (status["in_memory"], status["absent"], status["no_room"]) == (9, 1, 0)
    assert status["reason"] == "1 page not read: no longer on disk, or unreadable"


def test_a_prefetch_reads_on_when_there_is_room_again_and_says_why_the_rest_was_not_read() -> None:
    daemon = Daemon(30, frames=20)  # of which 18 are nine tenths
    full = [FetchOutcome.NO_ROOM]
    daemon.answers = [Fetched(0, bytes([FetchOutcome.IN_MEMORY] * 8 + full * 10)), Fetched(0, bytes(full * 10))]
    status = daemon.prefetch()
    assert (status["pages"], status["in_memory"], status["no_room"]) == (30, 8, 22)
    assert status["reason"] == f"22 pages not read: 12 ({LEFT_OUT}), 10 ({NO_ROOM})"


@pytest.mark.parametrize(("outcome", "counter"), [(FetchOutcome.PENDING, "pending"), (FetchOutcome.ABSENT, "absent")])
def test_the_daemons_reason_ends_a_prefetch(outcome: FetchOutcome, counter: str) -> None:
    daemon = Daemon(10, frames=20)
    daemon.answers = [Fetched(0, bytes([outcome] * 10), "the reason")]
    status = daemon.prefetch()
    assert len(daemon.asked) == 1
    assert (status[counter], status["reason"]) == (10, "10 pages not read: the reason")


def test_a_limit_of_the_request_is_why_pages_are_left_out() -> None:
    daemon = Daemon(30, frames=100)
    for most, why in ((5, "a request reads at most 5 pages"), (30, "")):
        found = asyncio.run(pages_to_read(daemon.observer, DaemonStatus(), daemon.observer.spaces(), most))
        assert (PAGE_KEYS.count(found.keys), found.left_out) == (most, 30 - most)
        assert found.why_left_out == why or not why
