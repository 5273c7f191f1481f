"""Tests that the lock of a slot lives as long as a mapping, whatever the process does with its descriptors."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from fcntl import F_OFD_SETLK, F_WRLCK, fcntl

import pytest

from numbered_pages import session_of
from pagetier.shm.segments import SegmentRequest, Segments, take
from pagetier.shm.slot_locks import SlotLocks, new_lock


@pytest.fixture
def segments(segment_request: SegmentRequest) -> Iterator[Segments]:
    there = take(segment_request)
    yield there
    there.remove()


@pytest.fixture
def locks(segments: Segments) -> Iterator[SlotLocks]:
    there = segments.open_locks()
    yield there
    there.close()


def attached(segments: Segments) -> tuple[int, int]:
    """Returns a slot of this process, and its lock."""
    lock = new_lock()
    return segments.owner.attach(os.getpid(), 0, 0, 1, "test", 1, lock), lock


def closed(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def test_a_mapping_keeps_the_lock_without_any_descriptor(segments: Segments, locks: SlotLocks) -> None:
    slot, lock = attached(segments)
    assert not locks.is_held(lock)
    descriptors = segments.slot_descriptors(slot)
    assert locks.is_held(lock) and not locks.is_held(lock + 1)
    session = session_of(descriptors, slot)  # closes them, as the client does
    closed(segments.slot_descriptors(slot))  # a session that attaches again keeps its mapping
    assert locks.is_held(lock)
    assert session.retire() and not locks.is_held(lock)


def test_descriptors_in_a_socket_keep_the_lock(segments: Segments, locks: SlotLocks) -> None:
    slot, lock = attached(segments)
    first, second = segments.slot_descriptors(slot), segments.slot_descriptors(slot)
    closed(first)
    assert locks.is_held(lock)
    closed(second)
    assert not locks.is_held(lock)


def test_a_forked_child_does_not_keep_the_lock(segments: Segments, locks: SlotLocks) -> None:
    slot, lock = attached(segments)
    session = session_of(segments.slot_descriptors(slot), slot)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    try:
        assert session.retire() and not locks.is_held(lock)
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def test_a_slot_whose_descriptor_cannot_be_locked_is_not_judged_by_its_lock(segments: Segments) -> None:
    """Another attached process has locked the byte: the slot's record does not claim what is not true."""
    slot, lock = attached(segments)
    *others, arena = segments.descriptors()
    fcntl(arena, F_OFD_SETLK, struct.pack("hhqqi4x", F_WRLCK, os.SEEK_SET, lock, 1, 0))
    closed(segments.slot_descriptors(slot))
    assert segments.owner.lock_of(slot) == 0
    closed([*others, arena])
    closed(segments.slot_descriptors(slot))
    assert segments.owner.lock_of(slot) == 0, "an earlier descriptor has no lock"


def test_a_watcher_gets_no_descriptor_that_could_hold_a_lock(segments: Segments) -> None:
    watched, given = segments.read_only_descriptors(), segments.descriptors()
    arena = os.fstat(given[-1]).st_ino
    assert arena not in [os.fstat(descriptor).st_ino for descriptor in watched]
    closed([*watched, *given])
