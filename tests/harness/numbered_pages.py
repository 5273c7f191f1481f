"""Pages whose content follows from their number, stored and matched through the core."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from hashlib import sha256

import numpy as np

import page_reservations
from anonymous_segments import DAY_NS, attach
from oracle.page_contents import content
from pagetier.shm._core import KEY_BYTES, Owner, Pins, ReserveOutcome, Session
from pagetier.shm.geometry import Geometry
from pagetier.shm.segments import SegmentRequest, Segments, take

FRAME = 4096
GEOMETRY = Geometry(frame_bytes=FRAME, frames=64, entries=48, spaces=4)


def key_of(number: int) -> bytes:
    return sha256(b"%d" % number).digest()


def keys_of(numbers: Iterable[int]) -> bytes:
    return b"".join(map(key_of, numbers))


def content_of(number: int) -> bytes:
    return content(key_of(number), number, int(np.random.default_rng(number).integers(1, 4 * FRAME)))


def frames_of(numbers: list[int]) -> int:
    return sum(-(-len(content_of(number)) // FRAME) for number in numbers)


def session_of(descriptors: list[int], slot: int) -> Session:
    """Returns a session with these descriptors, which it closes."""
    try:
        index, locks, arena = descriptors
        return Session(index, locks, arena, slot)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def reserve(owner: Owner, slot: int, numbers: list[int]) -> tuple[bytes, bytes, bytes]:
    sizes = np.array([len(content_of(number)) for number in numbers], np.uint64)
    space = owner.space(bytes(KEY_BYTES), "test", 16, 0, 0)
    return page_reservations.reserve(owner, slot, space, 0, 1, DAY_NS, keys_of(numbers), sizes)


def write(session: Session, entry: bytes, number: int) -> None:
    write_page(session, entry, content_of(number))


def write_page(session: Session, entry: bytes, content: bytes) -> None:
    """Copies the bytes of a page into memory."""
    source = np.frombuffer(content, np.uint8)
    assert session.copy_in(entry, _u64(source.ctypes.data), _u64(len(source)), 0, 1) == 1


def read_page(session: Session, pins: Pins, size: int) -> bytes:
    """Returns the bytes of the first pinned page."""
    out = np.zeros(size, np.uint8)
    assert session.copy_out(pins, 0, _u64(out.ctypes.data), _u64(size), 1) == 1
    return out.tobytes()


def store(owner: Owner, session: Session, numbers: list[int]) -> None:
    """Stores the pages that are not stored yet."""
    outcomes, entries, serials = reserve(owner, session.slot, numbers)
    for at, outcome in enumerate(outcomes):
        if outcome == ReserveOutcome.GRANTED:
            entry, serial = entries[4 * at : 4 * at + 4], serials[8 * at : 8 * at + 8]
            write(session, entry, numbers[at])
            session.publish(entry, serial, 0)


def holds(session: Session, number: int) -> bool:
    """Returns whether the page is in memory, and compares its content."""
    with session.match(Pins, None, key_of(number)) as pins:
        if not len(pins):
            return False
        content = content_of(number)
        assert read_page(session, pins, len(content)) == content, f"page {number} has wrong content"
        return True


def held(segments: Segments, numbers: range) -> list[int]:
    """Returns the pages that the segments contain, and compares their content."""
    slot = attach(segments.owner, secrets.randbits(63))
    session = session_of(segments.descriptors(), slot)
    found = [number for number in numbers if holds(session, number)]
    assert session.retire()
    segments.owner.reap(slot)
    return found


def leave_pages(segment_request: SegmentRequest, count: int) -> None:
    """Leaves segments with pages 0 to count - 1 and no attached process, as after a crash."""
    segments = take(segment_request)
    session = session_of(segments.descriptors(), attach(segments.owner, 1))
    store(segments.owner, session, list(range(count)))
    segments.release()


def _u64(number: int) -> bytes:
    return number.to_bytes(8, "little")
