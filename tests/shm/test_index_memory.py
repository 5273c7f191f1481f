"""Tests that the shares of an index's memory are all of it, and no more."""

from __future__ import annotations

import os
from typing import Final

import msgspec
import pytest

from named_segments import path_of
from pagetier.shm import index_memory
from pagetier.shm._core import ShmError
from pagetier.shm.geometry import Geometry
from pagetier.shm.index_memory import populate_index, share_count
from pagetier.shm.segment_files import KINDS, open_new, resize, unlink
from pagetier.shm.segments import SegmentRequest, map_segments, take
from refused_threads import allow_threads

BLOCK: Final = 512  # bytes that st_blocks counts
PAGE: Final = os.sysconf("SC_PAGESIZE")
SHARES: Final = 3


@pytest.fixture
def wide(segment_request: SegmentRequest) -> SegmentRequest:
    """Returns a request for an index of some megabytes, and a small arena."""
    return msgspec.structs.replace(segment_request, geometry=Geometry(PAGE, 8, 20_000, 4))


def allocated(request: SegmentRequest) -> tuple[int, int]:
    """Returns the bytes of index and lock words that have memory."""
    index, locks = (path_of(request, kind).stat().st_blocks * BLOCK for kind in ("index", "locks"))
    return index, locks


def whole(geometry: Geometry) -> tuple[int, int]:
    """Returns the bytes of index and lock words, without the ring of events, in whole pages of the kernel."""
    index, locks, _ = geometry.sizes
    return -(-(index - geometry.events_bytes) // PAGE) * PAGE, -(-locks // PAGE) * PAGE


@pytest.mark.parametrize("cores", [1, SHARES])
def test_new_segments_have_all_of_the_memory(wide: SegmentRequest, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_memory, "share_count", lambda nbytes: cores)
    segments = take(wide)
    try:
        assert allocated(wide) == whole(wide.geometry)
        assert segments.owner.check_integrity() == []
    finally:
        segments.remove()


def test_each_share_is_about_as_large_as_the_others(wide: SegmentRequest) -> None:
    for kind, size in zip(KINDS, wide.geometry.sizes, strict=True):
        os.close(open_new(wide.name, kind))
        resize(wide.name, kind, size)
    try:
        owner, before = map_segments(wide.name), 0
        for share in range(SHARES):
            owner.populate_index(wide.geometry.at_events, wide.geometry.events_bytes, share, SHARES)
            now = sum(allocated(wide))
            assert abs(now - before - sum(whole(wide.geometry)) // SHARES) <= 3 * PAGE
            before = now
        with pytest.raises(ValueError, match="there is no share 3 of 3"):
            owner.populate_index(wide.geometry.at_events, wide.geometry.events_bytes, SHARES, SHARES)
    finally:
        unlink(wide.name)


def test_lack_of_memory_in_any_share_is_reported(wide: SegmentRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_memory, "share_count", lambda nbytes: SHARES)

    class Short:
        def populate_index(self, at_events: int, events_bytes: int, share: int, shares: int) -> None:
            if share == SHARES - 1:
                raise OSError(12, "Cannot allocate memory")

    with pytest.raises(ShmError, match="cannot allocate the memory of the index: Cannot allocate memory"):
        populate_index(Short(), wide.geometry)  # type: ignore[arg-type]


@pytest.mark.parametrize("allowed", [0, 1])
def test_threads_that_cannot_be_started_leave_their_shares_to_others(
    wide: SegmentRequest, allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_memory, "share_count", lambda nbytes: SHARES)
    allow_threads(allowed, monkeypatch)
    segments = take(wide)
    try:
        assert allocated(wide) == whole(wide.geometry)
    finally:
        segments.remove()


def test_small_indexes_take_one_thread_and_large_ones_as_many_as_there_are_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    assert [share_count(nbytes) for nbytes in (0, 1 << 20, 32 << 20, 100 << 20, 1 << 40)] == [1, 1, 1, 3, 16]
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    assert share_count(1 << 40) == 2
