"""A session as an engine uses it: its properties, its end, forks, and threads that copy or hold it at that time."""

from __future__ import annotations

import ctypes
import errno
import sys
from pathlib import Path

import pytest

from anonymous_segments import DAY_NS
from child_process import in_child
from page_reservations import reserve
from pagetier.shm._core import KEY_BYTES, Pins, WriteRule
from refused_system_call import MADV_DONTFORK, MADVISE, refuse_system_call
from session_world import FRAME, KEYS, SessionWorld, copying, first_of, load, page, pinned


def test_a_session_reports_its_slot_and_segments(world: SessionWorld) -> None:
    session = world.session
    assert session.usable and not session.closed
    assert (session.slot, session.frame_bytes, session.arena_bytes) == (0, FRAME, 16 * FRAME)
    assert session.incarnation == world.owner.header().incarnation
    assert session.segments_id == world.owner.header().segments_id
    assert session.disk_bytes == 0
    world.owner.disk_open(8, WriteRule.EVICTED)
    assert session.disk_bytes == 8 * FRAME
    world.owner.close()
    assert session.closed


@pytest.mark.parametrize("parts", [1, 2, 3, 32])
def test_the_bytes_of_a_page_count_once_however_many_ranks_store_it(world: SessionWorld, parts: int) -> None:
    size, space = 2 * FRAME - 1, world.owner.space(bytes(KEY_BYTES), "test", 16, 0, 0)
    key, sizes = bytes([9]) * KEY_BYTES, size.to_bytes(8, "little")
    before = sum(each.counts.stored_bytes for each in world.owner.attachments())
    ranks = [world.join() for _ in range(parts)]
    for part, rank in enumerate(ranks):
        granted = reserve(world.owner, rank.slot, space, part, parts, DAY_NS, key, sizes)
        assert rank.publish(granted.entries, granted.serials, part) == b"\1"
    after = [each.counts for each in world.owner.attachments()]
    assert sum(counts.stored_bytes for counts in after) - before == size
    assert [counts.stored_pages for counts in after[-parts:]] == [1] * parts, "each stored a part of a page"


def test_a_retired_session_has_released_everything(world: SessionWorld) -> None:
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
    assert session.retire(), "a second retire() failed"


def test_a_forked_child_has_no_session_and_releases_nothing(world: SessionWorld) -> None:
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
    assert session.usable and pins.pinned
    assert pinned(world) == 2, "the child released a page"
    assert load(session, pins) is not None
    assert session.publish(entry, serial, 0) == b"\1"


def test_a_session_that_a_forked_child_would_inherit_is_refused(world: SessionWorld) -> None:
    """The kernel refuses MADV_DONTFORK. A child with the mapping would keep the lock of its parent's slot."""

    def child() -> None:
        before = mappings()
        refuse_system_call(MADVISE, argument=2, value=MADV_DONTFORK, error=errno.ENOMEM)
        with pytest.raises(OSError) as refused:
            world.memory.session(1)
        assert refused.value.errno == errno.ENOMEM
        assert mappings() == before, "a segment stays mapped"

    assert in_child(child) == 0


def mappings() -> int:
    """Returns how many segments this process has mapped."""
    return Path("/proc/self/maps").read_text().count("memfd:pagetier-test-")


def test_a_dropped_session_releases_its_memory(world: SessionWorld) -> None:
    """A session dropped without retire() is unmapped. Its pins are released when its process or its slot ends."""
    session = world.join()
    slot = session.slot
    pins = session.repin(Pins, None, *first_of(world))
    del session
    assert pinned(world) == 1
    del pins
    world.owner.reap(slot)
    assert pinned(world) == 0


def test_a_session_that_copies_is_not_retired() -> None:
    """The scheduler decides whether the copy is in progress, not begun or over when the session is asked to retire."""
    refused = tries = 0
    while not refused and tries < 200:
        tries += 1
        world = SessionWorld(frame=1 << 20, frames=64)
        world.store(world.session, 0, page(1, 64 << 20))
        pins, out, copied = world.session.match(Pins, None, KEYS[0]), page(0, 64 << 20), list[int]()
        with copying(world.session, pins, out, copied):
            while not copied and not world.session.retire():
                refused += 1
        assert (copied == [1] and out.all()) or (copied == [0] and not refused)
        world.memory.close()
    assert refused, "no copy was in progress: the test proves nothing"


def test_a_retained_arena_stays_mapped(world: SessionWorld) -> None:
    session = world.session
    address, size = session.arena_address, session.arena_bytes
    session.retain_arena()
    session.retain_arena()
    assert not session.retire()
    session.release_arena()
    assert not session.retire() and session.usable
    assert len(ctypes.string_at(address, size)) == size
    session.release_arena()
    assert session.retire()
    assert session.arena_address == 0
    with pytest.raises(RuntimeError, match="without retain_arena"):
        session.release_arena()


def test_a_hold_keeps_an_otherwise_unused_session() -> None:
    session = SessionWorld().session
    known = sys.getrefcount(session)
    session.retain_arena()
    assert sys.getrefcount(session) == known + 1
    session.release_arena()
    assert sys.getrefcount(session) == known
