"""Pins: which pages they keep and how long, the bytes that are copied from them, and invalid pins."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from pagetier.shm._core import Pins, ShmError, TierFlag, miss
from seeded_random import chance
from session_world import FRAME, KEYS, SessionWorld, address_and_size, copying, first_of, load, page, pinned


def test_pins_are_counted(world: SessionWorld) -> None:
    """A page stays until the last of the process's matches has released it."""
    first = world.session.match(Pins, None, b"".join(KEYS[:2]))
    second = world.session.match(Pins, None, KEYS[0])
    first.release()
    first.release()
    assert pinned(world) == 1
    assert load(world.session, first) is None
    assert load(world.session, second) is not None
    second.release()
    assert pinned(world) == 0


def test_a_session_pins_no_more_frames_than_its_limit(world: SessionWorld) -> None:
    """Each of the three pages has two frames."""
    other = world.join()
    world.owner.set_pin_quota(5)
    held = world.session.match(Pins, None, b"".join(KEYS[:3]))
    again = world.session.match(Pins, None, b"".join(KEYS[:3]))
    assert (len(held), held.available_pages, len(again)) == (2, 2, 2)
    assert len(other.match(Pins, None, b"".join(KEYS[:3]))) == 2
    assert world.owner.matches_at_quota() == 3
    assert [attachment.pinned_bytes for attachment in world.owner.attachments_with_pins()] == [4 * FRAME, 0]
    held.release()
    assert len(world.session.match(Pins, None, KEYS[2])) == 0
    again.release()
    assert len(world.session.match(Pins, None, KEYS[2])) == 1
    tokens, _, _, (pins,) = world.session.match_groups(Pins, ((KEYS[:3], b"".join(KEYS[:3]), 16, 1 << 63),), 48)
    assert (tokens, len(pins)) == (32, 2)
    pins.release()
    world.owner.set_pin_quota(0)
    assert len(world.session.match(Pins, None, b"".join(KEYS[:3]))) == 3


def test_pins_end_with_their_object(world: SessionWorld) -> None:
    pins = world.session.match(Pins, None, KEYS[0])
    assert pins.pinned
    del pins
    gc.collect()
    assert pinned(world) == 0


def test_pins_keep_their_session(world: SessionWorld) -> None:
    session = world.join()
    pins = session.match(Pins, "what was asked", KEYS[0] + KEYS[7])
    del session
    gc.collect()
    assert pins.session is not None
    loaded = load(pins.session, pins)
    assert loaded is not None and np.array_equal(loaded, page(1))
    assert (pins.asked, len(pins), pins.context) == (2, 1, "what was asked")


def test_pages_of_another_session_are_a_miss(world: SessionWorld) -> None:
    other = world.join()
    pins = world.session.match(Pins, None, KEYS[0])
    assert load(other, pins) is None
    assert load(world.session, pins) is not None


def test_a_miss_without_a_session(world: SessionWorld) -> None:
    pins = miss(Pins, "context", 7)
    assert (len(pins), pins.asked, pins.session, pins.pinned) == (0, 7, None, False)
    assert (pins.entries, pins.serials, pins.sizes) == (b"", b"", b"")
    assert load(world.session, pins) is None
    pins.release()


def test_a_replaced_page_is_not_pinned_again(world: SessionWorld) -> None:
    """The serial distinguishes the pages that were stored in the same entry, even with the same key."""
    entries, serials = first_of(world)
    assert len(world.session.repin(Pins, None, entries, serials)) == 1
    world.owner.settle()
    world.owner.flush(-1, TierFlag.BOTH)
    assert len(world.session.repin(Pins, None, entries, serials)) == 0
    world.store(world.session, 0, page(9))
    assert first_of(world)[0] == entries, "the test needs the same entry"
    assert len(world.session.repin(Pins, None, entries, serials)) == 0


def test_a_copy_of_released_pins_is_exact_or_a_miss() -> None:
    """One thread releases the page that another one copies."""
    size = 64 << 20
    world = SessionWorld(frame=1 << 20, frames=64)
    random = chance()
    kept = tries = 0
    longest = 0.01
    while tries < 8 or (not kept and tries < 200):
        tries += 1
        world.store(world.session, 0, page(1, size))
        world.owner.settle()
        pins, out, copied = world.session.match(Pins, None, KEYS[0]), page(0, size), list[int]()
        with copying(world.session, pins, out, copied):
            threading.Event().wait(float(random.uniform(0.0, longest)))
            pins.release()
            assert not pins.pinned
            if world.owner.flush(-1, TierFlag.BOTH) == (1, 0):
                world.store(world.session, 1, page(2, size))
            else:
                kept += 1
        longest = 0.01 if kept else 0.9 * longest  # copies are shorter on a faster machine
        assert copied == [0] or (copied == [1] and (out == 1).all())
        world.owner.settle()
        assert world.owner.flush(-1, TierFlag.BOTH) == (1, 0), "the page is still pinned after the copy"
    assert kept, "no copy was in progress: the test proves nothing"
    world.memory.close()


def test_a_session_cannot_use_pages_granted_to_another(world: SessionWorld) -> None:
    """A process that knows the numbers of another's page can neither write, publish nor abandon it."""
    other = world.join()
    entry, serial = world.reserve(world.session, 5, FRAME)
    assert other.copy_in(entry, *address_and_size(page(9, FRAME)), 0, 1) == 0
    assert other.publish(entry, serial, 0) == b"\0"
    other.abandon(entry, serial, 0)
    assert world.session.publish(entry, serial, 1) == b"\0", "a part was published that was never granted"
    world.owner.settle()
    assert world.session.copy_in(entry, *address_and_size(page(6, FRAME)), 0, 1) == 1
    assert world.session.publish(entry, serial, 0) == b"\1"
    loaded = load(other, other.match(Pins, None, KEYS[5]), FRAME)
    assert loaded is not None and (loaded == 6).all()
    assert other.copy_in(entry, *address_and_size(page(9, FRAME)), 0, 1) == 0, "a published page was written to"


def test_invalid_arguments_are_rejected(world: SessionWorld) -> None:
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


def test_bytes_that_do_not_fit_are_not_copied(world: SessionWorld) -> None:
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
