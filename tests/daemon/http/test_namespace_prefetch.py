"""Tests that a prefetch of a namespace does not hold the loop of the HTTP process, counted by its turns."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any, Final, cast

import numpy as np

from anonymous_segments import Memory
from counted_instructions import CountedInstructions
from pagetier.daemon.config.schema import AccessOptions
from pagetier.daemon.host.peer_credentials import Caller
from pagetier.daemon.http.api import Api
from pagetier.daemon.http.channel_messages import Entrance, Settings
from pagetier.daemon.http.daemon_channel import DaemonChannel
from pagetier.daemon.http.http_connection import Request
from pagetier.daemon.http.peers import HttpCaller
from pagetier.shm._core import KEY_BYTES, LISTED_LAYOUT, Observer, WriteRule
from pagetier.shm.geometry import Geometry
from pagetier.shm.page_rows import PAGE_KEYS
from pagetier.shm.protocol import Fetched, FetchOutcome
from pagetier.shm.row_arrays import dtype_of
from seeded_random import chance

FRAME: Final = 4096
SLICE: Final = 1024  # pages of one turn
BODY: Final = json.dumps({"namespace": "model"}).encode()
CALLER: Final = HttpCaller(Entrance.SOCKET, Caller(os.getpid(), os.geteuid(), frozenset()))
REQUEST: Final = Request("POST", "/v1/prefetch", {}, BODY, CALLER)


class Daemon:
    """A daemon whose index has pages of one namespace that are only on disk, and which reads whatever it is asked for.

    Attributes:
        observer: Its index.
        asked: The keys of each request.
        walks: In which turn of the loop each walk over the index began.
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
        self.walks: list[int] = []
        self.turns = self.longest = 0
        self._count, self._before = CountedInstructions(), 0

    def __getattr__(self, name: str) -> Any:
        """Returns what the observer has, for which this stands too."""
        return getattr(self.observer, name)

    def pages(self, space: int) -> bytes:
        self.walks.append(self.turns)
        return self.observer.pages(space)

    async def fetch(self, _user: int, keys: bytes, _timeout: float) -> Fetched:
        self.asked.append(keys)
        return Fetched(0, bytes([FetchOutcome.IN_MEMORY]) * PAGE_KEYS.count(keys))

    def prefetch(self, times: int = 1) -> None:
        """Serves that many prefetches of the namespace, which come at once."""
        with self._count.counted():
            asyncio.run(self._serve(times))

    async def _serve(self, times: int) -> None:
        api = Api(cast("Observer", self), cast("DaemonChannel", self), cast("Any", None), cast("Any", None))
        self._note_turn()
        responses = await asyncio.gather(*[api.respond(REQUEST) for _ in range(times)])
        assert [response.status for response in responses] == [202] * times, responses

    def _note_turn(self) -> None:
        self.turns += 1
        self.longest = max(self.longest, self._count.executed - self._before)
        self._before = self._count.executed
        asyncio.get_running_loop().call_soon(self._note_turn)


def test_the_loop_has_its_turn_after_a_bounded_number_of_steps_however_many_pages_there_are() -> None:
    few, many = (Daemon(slices * SLICE, frames=slices * SLICE) for slices in (4, 16))
    few.prefetch()
    many.prefetch()
    assert many.turns >= 16, "one slice in a turn"
    assert 0 < many.longest < 1.1 * few.longest, f"{few.longest} instructions in a turn, then {many.longest}"


def test_the_last_used_pages_are_read_of_all_slices() -> None:
    daemon = Daemon(5 * SLICE, frames=2 * SLICE)
    daemon.prefetch()
    rows = np.frombuffer(daemon.observer.pages(0), dtype_of(LISTED_LAYOUT))
    last_used_first = rows["key"][np.argsort(rows["used_ns"])[::-1]]
    assert daemon.asked == [b"".join(key.tobytes() for key in last_used_first[: int(0.9 * 2 * SLICE)])]


def test_the_pages_of_one_namespace_are_listed_at_a_time() -> None:
    daemon = Daemon(4 * SLICE, frames=SLICE)
    daemon.prefetch(times=3)
    assert len(daemon.walks) == 3
    assert all(later - earlier >= 4 for earlier, later in zip(daemon.walks, daemon.walks[1:], strict=False))
