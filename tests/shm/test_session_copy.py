"""A session's copies of tokens between a strided cache and pages of the arena that are granted or pinned."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from anonymous_segments import DAY_NS
from child_process import in_child
from copy_oracle import Bytes
from page_reservations import reserve
from pagetier.shm._core import KEY_BYTES, Observer, Pins, Session, TierFlag, miss
from session_world import KEYS, SessionWorld
from strided_tables import FRAME, Shape, Tables

AT_ENTRIES, AT_FRAMES = 144, 152  # offsets in the header, see core/common/layout.h


class StridedWorld(SessionWorld):
    """An owner, a session, and a cache of that session."""

    def __init__(self, shape: Shape, frame: int = FRAME, frames: int = 64) -> None:
        super().__init__(frame, frames)
        self.tables = Tables(shape)
        self.size = self.tables.page_bytes

    def reserve_pages(self, count: int, size: int | None = None) -> tuple[bytes, bytes]:
        """Reserves pages for the first keys."""
        space = self.owner.space(bytes(KEY_BYTES), "test", 48, 0, 0)
        sizes = np.full(count, self.size if size is None else size, np.uint64)
        keys = b"".join(KEYS[:count])
        outcomes, entries, serials = reserve(self.owner, self.session.slot, space, 0, 1, DAY_NS, keys, sizes)
        assert outcomes == bytes(count)
        return entries, serials

    def gather(self, entries: bytes, size: int | None = None) -> int:
        return self.session.gather(entries, self.size if size is None else size, *self.tables.shared(2))

    def scatter(self, pins: Pins, first: int = 0, session: Session | None = None) -> int:
        return (session or self.session).scatter(pins, first, self.size, *self.tables.shared(2))

    def stored(self) -> Bytes:
        """Gathers and publishes three pages, and returns their bytes."""
        entries, serials = self.reserve_pages(3)
        assert self.gather(entries) == 3
        assert self.session.publish(entries, serials, 0) == bytes([1, 1, 1])
        return self.tables.gathered(np.zeros((3, self.size), np.uint8))

    def pin(self) -> Pins:
        return self.session.match(Pins, None, b"".join(KEYS[:3]))

    def number(self, at: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
        """Returns a word of the index, which the test overwrites."""
        index = mmap.mmap(self.memory.descriptors[0], 0)
        return np.frombuffer(index, np.uint32, 1, at)

    def offset(self, at: int) -> int:
        return int(self.number(at)[0])


@pytest.fixture
def world() -> Iterator[StridedWorld]:
    world = StridedWorld(Shape(page_tokens=48, width=64))
    yield world
    world.memory.close()


def counted(world: StridedWorld) -> tuple[int, int]:
    index, locks, _ = world.memory.descriptors
    counts = Observer(index, locks).counts()
    return counts.loaded_pages, counts.loaded_bytes


def test_pages_stored_by_one_session_are_loaded_by_another(world: StridedWorld) -> None:
    pages = world.stored()
    assert counted(world) == (0, 0)
    with world.pin() as pins:
        content = np.zeros((3, world.size), np.uint8)
        addresses = np.array([row.ctypes.data for row in content], np.uint64)
        assert world.session.copy_out(pins, 0, addresses, np.full(3, world.size, np.uint64), 1) == 3
        assert np.array_equal(content, pages)
        world.tables = Tables(world.tables.shape, np.random.default_rng(2))
        expected = world.tables.scattered(pages)
        assert world.scatter(pins) == 3
        assert np.array_equal(world.tables.cache, expected)
    world.owner.settle()
    assert world.owner.flush(-1, TierFlag.BOTH) == (3, 0), "a page is still pinned"
    assert world.owner.check_integrity() == []


@pytest.mark.parametrize(
    ("size", "frame"),
    [(size, FRAME) for size in (1, 63, 64, 65, 192, 320, FRAME - 1, FRAME, FRAME + 65, 3 * FRAME - 130)]
    + [(size, 16 * FRAME) for size in (2 * FRAME - 1, 2 * FRAME + 256, 6 * FRAME + 65, 19 * FRAME - 130)],
)
def test_pages_are_copied_exactly_at_every_alignment(size: int, frame: int) -> None:
    """Ranges begin and end within cache lines, in the memory and in the page, and nothing beside them is written."""
    numbers = np.random.default_rng(size)
    content, seen = np.zeros(size, np.uint8), np.zeros(size + 256, np.uint8)
    world = StridedWorld(Shape(page_tokens=48, width=64), frame)
    entries, serials = world.reserve_pages(1, size)
    for at in range(0, size, 1 if size < 512 else 97):
        piece = numbers.integers(0, 256, min(size - at, int(numbers.integers(1, size + 1))), np.uint8)
        content[at : at + len(piece)] = piece
        source = np.concatenate([np.zeros(at % 7, np.uint8), piece])[at % 7 :]
        where = np.array([source.ctypes.data], np.uint64), np.array([len(piece)], np.uint64)
        assert world.session.copy_in(entries, *where, at, 1) == 1
    assert world.session.publish(entries, serials, 0) == bytes([1])
    with world.session.match(Pins, None, KEYS[0]) as pins:
        for shift in range(130):
            seen[:] = 255
            where = np.array([seen.ctypes.data + shift], np.uint64), np.array([size], np.uint64)
            assert world.session.copy_out(pins, 0, *where, 1) == 1
            assert np.array_equal(seen[shift : shift + size], content)
            assert (seen[:shift] == 255).all() and (seen[shift + size :] == 255).all()
    world.memory.close()


def test_the_loaded_bytes_are_counted(world: StridedWorld) -> None:
    world.stored()
    world.tables.skip = np.array([0, 1, 0], np.uint8)
    world.tables.pages["end"][2] = 5
    row = 4 * 3 * 64  # planes, heads, bytes
    assert world.scatter(world.pin()) == 3
    assert counted(world) == (2, (48 + 5) * row)


def test_a_part_of_the_pages_can_be_copied(world: StridedWorld) -> None:
    pages = world.stored()
    world.tables.cache[:] = 0
    world.tables.pages = world.tables.pages[1:]
    expected = world.tables.scattered(pages[1:])
    assert world.scatter(world.pin(), 1) == 2
    assert np.array_equal(world.tables.cache, expected)


def test_a_copy_ends_at_a_page_of_another_size(world: StridedWorld) -> None:
    entries, _ = world.reserve_pages(3)
    assert world.gather(entries, world.size + 1) == 0
    for nonsense in (b"\xff" * 4, (64).to_bytes(4, "little")):
        assert world.gather(entries[:8] + nonsense) == 2
        assert world.gather(nonsense + entries[4:]) == 0
    assert world.gather(entries, 1 << 40) == 0
    world.tables.skip = np.ones(3, np.uint8)
    assert world.gather(b"\xff" * 12) == 3, "the entries of skipped pages were validated"


def damages(world: StridedWorld, entry: int, frame: int) -> Iterator[tuple[int, int]]:
    """Yields words of the index, and corrupt values for them."""
    record = world.offset(AT_ENTRIES) + 128 * entry
    link = world.offset(AT_FRAMES) + 8 * frame
    yield from ((record + 40, world.size - 1), (record + 44, 1), (record + 48, 2**32 - 1), (record + 52, 1))
    yield from ((link, 2**32 - 1), (link, 64), (link, frame), (link + 4, entry + 1))


def test_a_corrupt_list_of_frames_costs_only_its_page(world: StridedWorld) -> None:
    pages = world.stored()
    pins = world.pin()
    entry = int.from_bytes(pins.entries[4:8], "little")
    frame = int.from_bytes(world.session.frames(entry)[:4], "little")
    for at, wrong in damages(world, entry, frame):
        place = world.number(at)
        right = place.copy()
        place[0] = wrong
        world.tables.cache[:] = 0
        done = world.scatter(pins)
        # A cyclic list ends after as many frames as the page has, all of which are its own.
        assert done == (3 if wrong == frame else 1)
        if done == 1:
            world.tables.skip = np.array([0, 1, 1], np.uint8)
            assert np.array_equal(world.tables.cache, without(world, pages))
            world.tables.skip = np.zeros(0, np.uint8)
        place[0] = right[0]
    assert world.scatter(pins) == 3


def without(world: StridedWorld, pages: Bytes) -> Bytes:
    cache = world.tables.cache.copy()
    world.tables.cache[:] = 0
    expected = world.tables.scattered(pages)
    world.tables.cache[:] = cache
    return expected


def test_a_page_that_is_not_pinned_is_a_miss(world: StridedWorld) -> None:
    world.stored()
    world.tables.cache[:] = 0
    pins, other = world.pin(), world.join()
    assert world.scatter(pins, session=other) == 0
    assert world.scatter(miss(Pins, None, 3)) == 0
    pins.release()
    assert world.scatter(pins) == 0
    again = other.match(Pins, None, b"".join(KEYS[:3]))
    assert other.retire()
    assert world.scatter(again, session=other) == 0
    assert other.gather(bytes(12), world.size, *world.tables.shared(1)) == 0
    assert not world.tables.cache.any()


def test_a_forked_child_copies_nothing(world: StridedWorld) -> None:
    world.stored()
    pins = world.pin()
    world.tables.cache[:] = 0

    def child() -> None:
        assert world.scatter(pins) == 0
        assert world.gather(pins.entries) == 0
        assert not world.tables.cache.any()

    assert in_child(child) == 0
    assert world.scatter(pins) == 3


def test_invalid_arguments_are_rejected(world: StridedWorld) -> None:
    world.stored()
    pins = world.pin()
    with pytest.raises(ValueError, match="3 pages from page 1 on, but 3 are pinned"):
        world.scatter(pins, 1)
    with pytest.raises(ValueError, match="3 pages from page 4 on, but 3 are pinned"):
        world.scatter(pins, 4)
    with pytest.raises(ValueError, match="entries: 2 for 3 pages"):
        world.gather(bytes(8))
    with pytest.raises(ValueError, match="entries: 13 bytes are no whole number"):
        world.gather(bytes(13))
    with pytest.raises(ValueError, match="page_bytes: must not be negative"):
        world.gather(pins.entries, -1)
    with pytest.raises(ValueError, match=r"planes\[3\]: reaches beyond the page"):
        world.gather(pins.entries, int(world.tables.planes["at"][3]) + 3 * 48 * 64 - 1)
    world.tables.pages["first"][1] = -1
    calls: list[Callable[[], int]] = [lambda: world.gather(pins.entries), lambda: world.scatter(pins)]
    for call in calls:
        with pytest.raises(ValueError, match=r"pages\[1\]: the first token is negative"):
            call()
    pins.release()
    world.owner.settle()
    assert world.owner.flush(-1, TierFlag.BOTH) == (3, 0), "an error leaked a pin"


@pytest.fixture
def busy() -> Iterator[tuple[StridedWorld, Pins, threading.Thread, list[int]]]:
    """Yields a thread that is about to scatter 48 MiB."""
    world = StridedWorld(Shape(width=8192, heads=8, other_heads=0, planes=4, page_tokens=64), 1 << 20, 64)
    world.stored()
    world.tables.cache[:] = 0
    pins, done = world.pin(), list[int]()
    thread = threading.Thread(target=lambda: done.append(world.scatter(pins)))
    yield world, pins, thread, done
    thread.join()
    assert done in ([0], [3])
    assert done == [0] or world.tables.cache.any()
    world.memory.close()


def test_pins_stay_while_they_are_copied(busy: tuple[StridedWorld, Pins, threading.Thread, list[int]]) -> None:
    """Pins released during a copy end with that copy."""
    world, pins, thread, done = busy
    before = world.tables.cache.copy()
    thread.start()
    while not done and np.array_equal(world.tables.cache[-4096:], before[-4096:]):
        pass
    pins.release()
    thread.join()
    world.owner.settle()
    assert done == [3]
    assert world.owner.flush(-1, TierFlag.BOTH) == (3, 0)


def test_a_session_that_copies_is_not_retired(busy: tuple[StridedWorld, Pins, threading.Thread, list[int]]) -> None:
    world, _, thread, done = busy
    thread.start()
    refused = 0
    while not done:
        refused += not world.session.retire()
    thread.join()
    assert done == [3] or not refused
