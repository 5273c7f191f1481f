"""Tests how the memory of an arena is allocated when a page first needs it, in page faults and allocated bytes."""

from __future__ import annotations

import os
import resource
from typing import Final

import msgspec
import pytest

from anonymous_segments import attach
from named_segments import path_of
from open_descriptors import open_descriptors
from page_reservations import reserve
from pagetier.shm._core import KEY_BYTES, Owner
from pagetier.shm.geometry import Geometry
from pagetier.shm.lazy_memory import LazyMemory
from pagetier.shm.segments import SegmentRequest, Segments, take

PAGES: Final = 512
FRAME: Final = 4096
OTHER_FAULTS: Final = 64  # of all that a reservation of PAGES pages touches beside the arena
BLOCK: Final = 512  # bytes that st_blocks counts


@pytest.fixture
def large(segment_request: SegmentRequest) -> SegmentRequest:
    """Returns a request for an arena of twice PAGES frames."""
    return msgspec.structs.replace(segment_request, geometry=Geometry(FRAME, 2 * PAGES, 2 * PAGES, 4))


def faults_of_granting(owner: Owner) -> int:
    """Returns the page faults of this process while PAGES new pages are granted."""
    slot, space = attach(owner, 1), owner.space(bytes(KEY_BYTES), "test", 16, 0, 0)
    keys, sizes = os.urandom(KEY_BYTES * PAGES), FRAME.to_bytes(8, "little") * PAGES
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    granted = reserve(owner, slot, space, 0, 1, 10**12, keys, sizes)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert not any(granted.outcomes)
    return faults


def allocated(request: SegmentRequest) -> int:
    """Returns the bytes of the arena that have memory."""
    return path_of(request, "arena").stat().st_blocks * BLOCK


def close(segments: Segments) -> None:
    """Removes the segments after a check of the index."""
    assert segments.owner.check_integrity() == []
    segments.remove()


def test_memory_from_the_file_costs_no_fault_for_a_page(large: SegmentRequest) -> None:
    """A fault maps and zeroes 4 KiB in the middle of a reservation, for a daemon that never reads them."""
    segments = take(large)
    segments.allocate_lazily(LazyMemory.FILE)
    assert faults_of_granting(segments.owner) < OTHER_FAULTS
    assert PAGES * FRAME <= allocated(large) < 2 * PAGES * FRAME
    close(segments)


def test_memory_through_the_mapping_is_allocated_too(large: SegmentRequest) -> None:
    segments = take(large)
    segments.allocate_lazily(LazyMemory.MAPPING)
    assert faults_of_granting(segments.owner) >= PAGES, "huge=advise takes a part of them"
    assert allocated(large) >= PAGES * FRAME
    close(segments)


@pytest.mark.parametrize("replaced", [True, False])
def test_memory_of_a_file_without_its_name_is_allocated(large: SegmentRequest, *, replaced: bool) -> None:
    """The file that has the name by now belongs to another process: engines would be killed (SIGBUS)."""
    segments = take(large)
    arena = path_of(large, "arena")
    with arena.open("rb") as own:
        arena.unlink()
        if replaced:
            arena.write_bytes(bytes(PAGES * FRAME))
        segments.allocate_lazily(LazyMemory.FILE)
        faults_of_granting(segments.owner)
        assert os.fstat(own.fileno()).st_blocks * BLOCK >= PAGES * FRAME
    close(segments)
    arena.unlink(missing_ok=True)


@pytest.mark.parametrize("through", list(LazyMemory))
def test_a_truncated_arena_stays_short(large: SegmentRequest, through: LazyMemory) -> None:
    """Pages beyond its end are a SIGBUS then. In a file that grew again they would be zeros with a valid key."""
    segments = take(large)
    segments.allocate_lazily(through)
    arena = path_of(large, "arena")
    length = arena.stat().st_size
    os.truncate(arena, 0)
    slot, space = attach(segments.owner, 1), segments.owner.space(bytes(KEY_BYTES), "test", 16, 0, 0)
    keys, sizes = os.urandom(KEY_BYTES * PAGES), FRAME.to_bytes(8, "little") * PAGES
    reserve(segments.owner, slot, space, 0, 1, 10**12, keys, sizes)
    assert arena.stat().st_size == 0
    os.truncate(arena, length)
    segments.remove()


def test_descriptors_are_closed(large: SegmentRequest) -> None:
    segments = take(large)
    before = open_descriptors().total()
    for through in (LazyMemory.FILE, LazyMemory.FILE, LazyMemory.MAPPING):
        segments.allocate_lazily(through)
        assert open_descriptors().total() == before + (through is LazyMemory.FILE)
    close(segments)
