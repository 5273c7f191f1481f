"""Tests that no process can reserve the whole arena for pages that it has not written."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from anonymous_segments import DAY_NS, Memory
from child_process import attached
from core_records import header_with
from eventually import eventually
from page_reservations import reserve
from pagetier.client import Client
from pagetier.daemon.index.quotas import NO_LIMIT, StoreQuota
from pagetier.daemon.index.slots import MOST_SLOTS, has_slot, why_no_slot
from pagetier.shm._core import KEY_BYTES, IndexHeader
from pagetier.shm.geometry import Geometry
from pagetier.shm.page_rows import PAGE_REQUESTS, PageRequest
from pagetier.shm.process import Process
from running_daemon import RunningDaemon, namespace

FRAME, FRAMES, SHARE = 64 << 10, 1024, 512


class Arena:
    """A fake owner of the index."""

    def __init__(self, frames: int, writing: int = 0, finished: int = 0) -> None:
        self.frames, self.writing, self.finished = frames, writing, finished

    def header(self) -> IndexHeader:
        return header_with(frames=self.frames, frame_bytes=FRAME)

    @property
    def open_entries(self) -> int:
        return self.writing

    def process_of(self, slot: int) -> tuple[int, int]:
        return 7, 1

    def frames_writing(self, slot: int) -> int:
        return self.writing

    def frames_for(self, pages: bytes) -> int:
        return sum(-(-page.size // FRAME) for page in PAGE_REQUESTS.read(pages))

    def settle(self) -> int:
        self.writing -= self.finished
        return self.writing


def rows(*sizes: int) -> bytes:
    return PAGE_REQUESTS.pack(PageRequest(bytes(KEY_BYTES), size) for size in sizes)


def pages(arena: Arena, share: float, *sizes: int) -> int:
    return StoreQuota(arena, share).pages(0, rows(*sizes))  # type: ignore[arg-type]


def test_a_request_is_granted_up_to_the_quota() -> None:
    assert pages(Arena(2000), 0.5, *[FRAME] * 1000) == 1000
    assert pages(Arena(2000), 0.5, *[FRAME] * 1200) == 1000
    assert pages(Arena(2000), 0.5, *[FRAME + 1] * 600) == 500
    assert pages(Arena(2000, writing=900), 0.5, *[FRAME] * 200) == 100
    assert pages(Arena(2000, writing=900, finished=900), 0.5, *[FRAME] * 200) == 200
    assert pages(Arena(2000, writing=1000), 0.5, FRAME) == 0
    assert pages(Arena(2000), 0.5, FRAME * 1001, FRAME) == 0


def test_processes_that_are_not_visible_have_quotas_of_their_own() -> None:
    """The attachments of one process count together, whatever PID each daemon saw."""
    owner = Memory(Geometry(4096, 64, 64, 2)).adopted()
    one, moved, other = (
        owner.attach(pid, 0, 0, token, "", kernel) for pid, token, kernel in ((0, 1, 5), (9, 2, 5), (0, 3, 6))
    )
    assert len({one, moved, other}) == 3 and owner.attach(77, 0, 0, 1, "", 5) == one
    assert owner.process_of(one) == owner.process_of(moved) != owner.process_of(other)
    space = owner.space(bytes(KEY_BYTES), "test", 16, 0, 0)
    for slot in (one, moved, other):
        reserve(owner, slot, space, 0, 1, DAY_NS, bytes([slot] * KEY_BYTES), struct.pack("<Q", 4096))
    assert [owner.frames_writing(slot) for slot in (one, moved, other)] == [2, 2, 1]
    for token in range(10, 10 + MOST_SLOTS - 2):
        owner.attach(0, 0, 0, token, "", 5)
    attachments = owner.attachments()
    assert "this process has" in why_no_slot(attachments, Process(0, 0, 5), 99, 0)
    assert why_no_slot(attachments, Process(0, 0, 6), 99, 0) == ""
    assert has_slot(attachments, Process(1234, 0, 6), 3) and not has_slot(attachments, Process(0, 0, 7), 3)


def test_a_process_has_room_for_certain_as_far_as_its_pages_were_counted() -> None:
    arena = Arena(2000)
    quota = StoreQuota(arena, 0.5)  # type: ignore[arg-type]
    assert quota.frames_left(0) == 1000
    quota.add(0, 400)
    arena.writing = 400
    assert quota.frames_left(0) == 600
    assert quota.pages(0, rows(*[FRAME] * 600)) == 600 and quota.frames_left(0) == 0
    arena.writing = 0
    assert quota.frames_left(0) == 1000
    assert StoreQuota(Arena(2000, writing=1), 0.5).frames_left(0) == 0  # type: ignore[arg-type]
    assert StoreQuota(Arena(2000), 0).frames_left(0) == NO_LIMIT  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("share", "sizes", "reason"),
    [
        (0.5, [FRAME, 1001 * FRAME], f"arena.process_share allows {1000 * FRAME} of the arena to a process"),
        (0.5, [FRAME, 2001 * FRAME], f"the arena has {2000 * FRAME}: set a larger arena.size"),
        (0.0, [FRAME, 2001 * FRAME], f"the arena has {2000 * FRAME}: set a larger arena.size"),
    ],
)
def test_the_reason_names_the_limit_that_a_page_exceeds(share: float, sizes: list[int], reason: str) -> None:
    bounds = StoreQuota(Arena(2000), share)  # type: ignore[arg-type]
    answer = bounds.why_refused(sizes[1])
    assert answer.startswith(f"a page of {sizes[1]} bytes never fits, and waiting does not help: ")
    assert reason in answer
    assert "quota of reserved and unwritten pages: arena.process_share" in bounds.why_refused(1000 * FRAME)


def test_a_page_that_exceeds_a_limit_is_said_to_never_fit() -> None:
    """Through all layers: an empty arena, and one page that exceeds the quota of a process."""
    with RunningDaemon("64MiB", "64KiB") as daemon, daemon.client() as client:
        for size, limit in (60 << 20, "arena.process_share allows"), (65 << 20, "set a larger arena.size"):
            with client.reserve(namespace().keys(range(16)), size) as room:
                refused = room.publish()
            assert refused.refused == 1
            assert f"a page of {size} bytes never fits, and waiting does not help" in refused.reason
            assert limit in refused.reason


def test_a_page_that_never_fits_does_not_reject_the_pages_after_it() -> None:
    quota = StoreQuota(Arena(2000), 0.5)  # type: ignore[arg-type]
    asked = [1001 * FRAME, 400 * FRAME, 400 * FRAME, 1001 * FRAME, FRAME]
    assert [quota.pages(0, rows(size)) for size in asked] == [0, 1, 1, 0, 1]


def test_a_reload_changes_the_share_of_a_process_that_has_reserved_pages() -> None:
    arena = Arena(2000)
    quota = StoreQuota(arena, 0.5)  # type: ignore[arg-type]
    assert quota.pages(0, rows(FRAME)) == 1
    quota.follow(0.0)
    assert quota.pages(0, rows(*[FRAME] * 1499)) == 1499
    arena.writing = 1500
    quota.follow(0.9)
    assert quota.pages(0, rows(*[FRAME] * 400)) == 300, "what it reserved without a limit counts"
    arena.writing = 1800
    quota.follow(0.5)
    assert quota.pages(0, rows(FRAME)) == 0


def test_without_a_quota_everything_is_allowed() -> None:
    assert pages(Arena(2000, writing=2000), 0.0, *[FRAME] * 3000) == 3000
    assert pages(Arena(1000, writing=1000), 0.5, *[FRAME] * 3000) == 3000
    assert pages(Arena(2000), 0.9) == 0


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon(str(FRAMES * FRAME), str(FRAME), "--set", "arena.process_share=0.5") as daemon:
        yield daemon


def granted_elsewhere(daemon: RunningDaemon, salt: str, pages: int) -> int:
    """Returns how many of these pages another process may reserve; it then publishes them."""
    keys = namespace(salt=salt).keys(range(16 * pages))

    def reserve_and_publish(client: Client, pipe: Connection) -> None:
        with client.reserve(keys, FRAME) as reservation:
            pipe.send(len(reservation.granted))
            pipe.recv()
            for page in range(len(keys)):
                reservation.write(page, bytes(FRAME))
            pipe.send(reservation.publish().stored)

    with attached(daemon.socket, reserve_and_publish) as child:
        granted = int(child.reported())
        assert child.ask(None) == granted
    return granted


def stores(client: Client, salt: str) -> bool:
    return client.store(namespace(salt=salt).keys(range(16)), [bytes(FRAME)]).stored == 1


def test_a_hanging_process_leaves_room(daemon: RunningDaemon) -> None:
    with daemon.client() as still:
        with still.reserve(namespace(salt="still").keys(range(16 * 700)), FRAME) as held:
            assert len(held.granted) == SHARE
            assert not stores(still, "more")
            assert granted_elsewhere(daemon, "other", 400) == 400
        assert eventually(lambda: stores(still, "again"))


def test_all_attachments_of_a_process_count_together(daemon: RunningDaemon) -> None:
    keys = [namespace(salt=str(number)).keys(range(16 * 300)) for number in range(2)]
    with daemon.client() as one, daemon.client() as another, one.reserve(keys[0], FRAME) as first:
        with another.reserve(keys[1], FRAME) as second:
            assert (len(first.granted), len(second.granted)) == (300, SHARE - 300)
            assert not stores(one, "one") and not stores(another, "another")
            assert granted_elsewhere(daemon, "other", 400) == 400
        assert eventually(lambda: stores(one, "again"))


def test_attaching_again_does_not_reset_the_quota(daemon: RunningDaemon) -> None:
    """Neither existing nor new attachments change what the others have reserved."""
    with daemon.client() as one:
        for number in range(3):
            with daemon.client() as passing:
                assert stores(passing, f"passing {number}")
        with one.reserve(namespace(salt="one").keys(range(16 * 700)), FRAME) as held:
            assert len(held.granted) == SHARE
            for number in range(3):
                with daemon.client() as passing:
                    assert not stores(passing, f"late {number}")
