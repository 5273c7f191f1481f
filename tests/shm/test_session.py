"""A session as an engine holds it: pins, their end, forks, and threads that do not know of each other."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pytest

from chance import chance
from dying import in_child
from memory import DAY_NS, Memory, attach
from pagetier.shm._core import Owner, Pins, Session, ShmError, miss
from pagetier.shm.segments import Geometry

KEYS = [bytes([number]) * 32 for number in range(8)]
FRAME = 4096


class World:
    """An owner and a session over one memory."""

    def __init__(self, frame: int = FRAME, frames: int = 16) -> None:
        self.memory = Memory(Geometry(frame, frames, frames, 2))
        self.owner: Owner = self.memory.adopted()
        self.session = self.join()

    def join(self) -> Session:
        return self.memory.session(attach(self.owner, len(self.owner.takers())))

    def reserve(self, session: Session, number: int, size: int) -> tuple[bytes, bytes]:
        space = self.owner.space(bytes(32), "test", 16, 0, 0)
        sizes = np.array([size], np.uint64)
        outcome, entry, serial = self.owner.reserve(session.slot, space, 0, 1, DAY_NS, KEYS[number], sizes)
        assert outcome == b"\0"
        return entry, serial

    def store(self, session: Session, number: int, content: npt.NDArray[np.uint8]) -> None:
        entry, serial = self.reserve(session, number, len(content))
        assert session.copy_in(entry, *address_and_size(content), 0, 2) == 1
        assert session.publish(entry, serial, 0) == b"\1"


def address_and_size(content: npt.NDArray[np.uint8]) -> tuple[bytes, bytes]:
    return content.ctypes.data.to_bytes(8, "little"), len(content).to_bytes(8, "little")


def page(fill: int, size: int = 2 * FRAME) -> npt.NDArray[np.uint8]:
    return np.full(size, fill, np.uint8)


def load(session: Session, pins: Pins, size: int = 2 * FRAME) -> npt.NDArray[np.uint8] | None:
    into = page(0, size)
    return into if session.copy_out(pins, 0, *address_and_size(into), 2) else None


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    for number in range(3):
        world.store(world.session, number, page(number + 1))
    yield world
    assert world.owner.check_integrity() == []
    world.memory.close()


def pinned(world: World) -> int:
    """How many of the three pages can not be evicted."""
    world.owner.settle()
    return world.owner.flush(-1, 3)[1]


def test_a_session_says_where_it_is(world: World) -> None:
    session = world.session
    assert session.usable and not session.closed
    assert (session.slot, session.frame_bytes, session.arena_bytes) == (0, FRAME, 16 * FRAME)
    assert session.incarnation == world.owner.header()["incarnation"]
    assert session.segments_id == world.owner.header()["segments_id"]
    world.owner.close()
    assert session.closed


def test_pins_are_counted(world: World) -> None:
    """However many matches of a process hold a page, it stays until the last has let go."""
    first = world.session.match(Pins, None, b"".join(KEYS[:2]))
    second = world.session.match(Pins, None, KEYS[0])
    first.release()
    first.release()
    assert pinned(world) == 1
    assert load(world.session, first) is None
    assert load(world.session, second) is not None
    second.release()
    assert pinned(world) == 0


def test_pins_end_with_their_object(world: World) -> None:
    pins = world.session.match(Pins, None, KEYS[0])
    assert pins.held
    del pins
    gc.collect()
    assert pinned(world) == 0


def test_pins_keep_their_session(world: World) -> None:
    session = world.join()
    pins = session.match(Pins, "what was asked", KEYS[0] + KEYS[7])
    del session
    gc.collect()
    assert pins.session is not None
    loaded = load(pins.session, pins)
    assert loaded is not None and np.array_equal(loaded, page(1))
    assert (pins.asked, len(pins), pins.context) == (2, 1, "what was asked")


def test_a_retired_session_has_let_go_of_everything(world: World) -> None:
    session = world.join()
    pins = session.match(Pins, None, b"".join(KEYS[:2]))
    more = session.match(Pins, None, KEYS[0])
    assert session.retire()
    assert pinned(world) == 0
    assert not session.usable and session.closed
    assert load(session, pins) is None and pins.sizes == b""
    pins.release()
    more.release()
    assert len(session.match(Pins, None, KEYS[0])) == 0
    assert session.publish(bytes(4), bytes(8), 0) == b"\0"
    session.abandon(bytes(4), bytes(8), 0)
    session.populate(0, 4096)
    assert session.retire(), "it may be told twice"


def test_pages_of_another_session_are_a_miss(world: World) -> None:
    other = world.join()
    pins = world.session.match(Pins, None, KEYS[0])
    assert load(other, pins) is None
    assert load(world.session, pins) is not None


def test_a_miss_without_a_session(world: World) -> None:
    pins = miss(Pins, "context", 7)
    assert (len(pins), pins.asked, pins.session, pins.held) == (0, 7, None, False)
    assert (pins.entries, pins.serials, pins.sizes) == (b"", b"", b"")
    assert load(world.session, pins) is None
    pins.release()


def test_a_forked_child_has_nothing_and_takes_nothing(world: World) -> None:
    session = world.session
    entry, serial = world.reserve(session, 5, FRAME)
    pins = session.match(Pins, None, KEYS[0])

    def child() -> None:
        assert not session.usable and session.closed
        assert len(session.match(Pins, None, KEYS[0])) == 0
        assert load(session, pins) is None and pins.sizes == b""
        assert session.publish(entry, serial, 0) == b"\0"
        session.abandon(entry, serial, 0)
        pins.release()
        assert session.retire()

    assert in_child(child) == 0
    assert session.usable and pins.held
    assert pinned(world) == 2, "the pinned one, and the one that is being written"
    assert load(session, pins) is not None
    assert session.publish(entry, serial, 0) == b"\1"


def test_a_session_without_end_is_no_leak(world: World) -> None:
    """Dropped without retire() its memory goes; its pins wait for its process's end, or its slot's."""
    session = world.join()
    slot = session.slot
    pins = session.repin(Pins, None, *first_of(world))
    del session
    assert pinned(world) == 1
    del pins
    world.owner.reap(slot)
    assert pinned(world) == 0


def first_of(world: World) -> tuple[bytes, bytes]:
    with world.session.match(Pins, None, KEYS[0]) as pins:
        return pins.entries, pins.serials


def test_what_has_been_replaced_is_not_pinned_again(world: World) -> None:
    """The serial tells one filling of an entry from the next, also of the same key."""
    entries, serials = first_of(world)
    assert len(world.session.repin(Pins, None, entries, serials)) == 1
    world.owner.settle()
    world.owner.flush(-1, 3)
    assert len(world.session.repin(Pins, None, entries, serials)) == 0
    world.store(world.session, 0, page(9))
    assert first_of(world)[0] == entries, "the test needs the same entry"
    assert len(world.session.repin(Pins, None, entries, serials)) == 0


@contextmanager
def copying(session: Session, pins: Pins, into: npt.NDArray[np.uint8], copied: list[int]) -> Iterator[None]:
    def copy() -> None:
        copied.append(session.copy_out(pins, 0, *address_and_size(into), 2))

    thread = threading.Thread(target=copy)
    thread.start()
    yield
    thread.join()


def test_pins_released_while_a_page_is_copied() -> None:
    """Exact bytes or a miss, even if one thread lets go of the page that another one copies."""
    size = 64 << 20
    world = World(frame=1 << 20, frames=64)
    random = chance()
    kept = 0
    for _ in range(8):
        world.store(world.session, 0, page(1, size))
        world.owner.settle()
        pins, into, copied = world.session.match(Pins, None, KEYS[0]), page(0, size), list[int]()
        with copying(world.session, pins, into, copied):
            threading.Event().wait(float(random.uniform(0.0, 0.01)))
            pins.release()
            assert not pins.held
            if world.owner.flush(-1, 3) == (1, 0):
                world.store(world.session, 1, page(2, size))
            else:
                kept += 1
        assert copied == [0] or (copied == [1] and (into == 1).all())
        world.owner.settle()
        assert world.owner.flush(-1, 3) == (1, 0), "the pin ends with the copy"
    assert kept, "no copy was under way: the test has shown nothing"
    world.memory.close()


def test_a_session_that_copies_is_not_retired(world: World) -> None:
    big = World(frame=1 << 20, frames=64)
    big.store(big.session, 0, page(1, 64 << 20))
    pins, into, copied = big.session.match(Pins, None, KEYS[0]), page(0, 64 << 20), list[int]()
    refused = 0
    with copying(big.session, pins, into, copied):
        while not big.session.retire():
            refused += 1
    assert refused > 0
    assert copied == [1] and into.all()
    big.memory.close()


def test_nonsense_is_refused(world: World) -> None:
    session = world.session
    pins = session.match(Pins, None, KEYS[0])
    with pytest.raises(ValueError, match="keys: 33 bytes are no whole number of 32-byte elements"):
        session.match(Pins, None, bytes(33))
    with pytest.raises(TypeError):
        session.match(int, None, KEYS[0])  # type: ignore[type-var]
    with pytest.raises(ValueError, match="serials has 2 elements, entries has 1"):
        session.repin(Pins, None, bytes(4), bytes(16))
    with pytest.raises(ValueError, match="1 pages from page 1 on, but 1 are pinned"):
        session.copy_out(pins, 1, bytes(8), bytes(8), 1)
    with pytest.raises(ShmError, match="no such slot"):
        world.memory.session(56)
    with pytest.raises(TypeError):
        Pins()
    assert session.copy_in(b"\xff" * 4, *address_and_size(page(1)), 0, 1) == 0
    assert len(session.repin(Pins, None, b"\xff" * 4, bytes(8))) == 0
    assert session.publish(b"\xff" * 4, bytes(8), 99) == b"\0"
    session.abandon(b"\xff" * 4, bytes(8), 99)


def test_bytes_that_do_not_fit_are_not_copied(world: World) -> None:
    entry, serial = world.reserve(world.session, 5, FRAME + 1)
    for size, offset, fits in [
        (FRAME + 1, 0, 1),
        (FRAME + 2, 0, 0),
        (1, FRAME, 1),
        (1, FRAME + 1, 0),
        (2, 2**64 - 1, 0),
    ]:
        assert world.session.copy_in(entry, *address_and_size(page(1, size)), offset, 1) == fits
    assert world.session.publish(entry, serial, 0) == b"\1"
    pins = world.session.match(Pins, None, KEYS[5])
    for size, fits in [(FRAME, False), (FRAME + 1, True), (FRAME + 2, False)]:
        assert (load(world.session, pins, size) is not None) == fits


def test_a_held_session_stays_mapped(world: World) -> None:
    session = world.session
    address, size = session.arena_address, session.arena_bytes
    session.hold()
    session.hold()
    assert not session.retire()
    session.unhold()
    assert not session.retire() and session.usable
    assert len(ctypes.string_at(address, size)) == size
    session.unhold()
    assert session.retire()
    assert session.arena_address == 0
    with pytest.raises(RuntimeError, match="without hold"):
        session.unhold()


def test_a_hold_keeps_the_session_when_nobody_else_does() -> None:
    session = World().session
    known = sys.getrefcount(session)
    session.hold()
    assert sys.getrefcount(session) == known + 1
    session.unhold()
    assert sys.getrefcount(session) == known
