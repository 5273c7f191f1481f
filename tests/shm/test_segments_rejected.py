"""Segments that a daemon cannot use are rejected or replaced, without losing a page."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import struct

import msgspec
import pytest

from file_changes import write_at
from named_segments import KINDS, fresh, path_of, sound
from numbered_pages import FRAME, GEOMETRY, held, leave_pages
from pagetier.shm._core import FORMAT, Observer, ShmError, TierFlag
from pagetier.shm.segments import Leftovers, Origin, SegmentRequest, UnfitError, take


@pytest.mark.parametrize("field", GEOMETRY.__struct_fields__)
def test_another_geometry_is_rejected_without_losing_a_page(segment_request: SegmentRequest, field: str) -> None:
    leave_pages(segment_request, 3)
    other = msgspec.structs.replace(GEOMETRY, **{field: 2 * getattr(GEOMETRY, field)})
    asked = msgspec.structs.replace(segment_request, geometry=other)
    with pytest.raises(
        ShmError, match=re.escape(f"contain pages and have {GEOMETRY}; the configuration asks for {other}")
    ):
        take(asked)
    segments = take(segment_request)
    assert held(segments, range(3)) == [0, 1, 2]
    segments.release()

    segments = take(fresh(asked))
    assert segments.origin is Origin.MADE
    assert getattr(segments.owner.header(), field) == getattr(other, field)
    segments.remove()


def count_none(segment_request: SegmentRequest) -> None:
    """Makes the header count no page."""
    index, locks = (path_of(segment_request, kind).open("r+b") for kind in ("index", "locks"))
    with index, locks, mmap.mmap(index.fileno(), 4096) as head:
        pages = Observer(index.fileno(), locks.fileno()).header().pages
        for at in range(64, 4096, 8):
            (before,) = struct.unpack_from("<Q", head, at)
            if before == pages:
                struct.pack_into("<Q", head, at, 0)
                if Observer(index.fileno(), locks.fileno()).header().pages == 0:
                    return
                struct.pack_into("<Q", head, at, before)
    raise AssertionError("no word of the header is the number of pages")


@pytest.mark.parametrize("field", GEOMETRY.__struct_fields__)
def test_empty_segments_of_another_geometry_are_replaced(
    segment_request: SegmentRequest, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    leave_pages(segment_request, 3)
    segments = take(segment_request)
    before = segments.owner.header().segments_id
    assert segments.owner.flush(0, TierFlag.BOTH)[0] == 3
    segments.release()
    asked = msgspec.structs.replace(
        segment_request, geometry=msgspec.structs.replace(GEOMETRY, **{field: 2 * getattr(GEOMETRY, field)})
    )
    with caplog.at_level("INFO"):
        segments = take(asked)
    assert [message for message in caplog.messages if "contain no page and have" in message] == caplog.messages
    assert segments.origin is Origin.MADE and sound(segments)
    assert getattr(segments.owner.header(), field) == getattr(asked.geometry, field)
    assert segments.owner.header().segments_id != before
    segments.remove()


def test_another_geometry_is_rejected_after_an_incomplete_adoption(segment_request: SegmentRequest) -> None:
    """An adoption counts pages from zero: if the daemon died during it, the header counts too few."""
    leave_pages(segment_request, 3)
    count_none(segment_request)
    asked = msgspec.structs.replace(segment_request, geometry=msgspec.structs.replace(GEOMETRY, spaces=9))
    with pytest.raises(UnfitError, match="contain pages"):
        take(asked)
    segments = take(segment_request)
    assert held(segments, range(3)) == [0, 1, 2]
    segments.remove()


def test_another_format_is_rejected_naming_both_without_losing_a_page(segment_request: SegmentRequest) -> None:
    leave_pages(segment_request, 3)
    write_at(path_of(segment_request, "index"), 8, struct.pack("<I", FORMAT + 1))
    before = path_of(segment_request, "index").read_bytes()
    with pytest.raises(UnfitError, match=f"format {FORMAT + 1} .*this build reads format {FORMAT}"):
        take(segment_request)
    assert path_of(segment_request, "index").read_bytes() == before
    segments = take(fresh(segment_request))
    assert segments.origin is Origin.MADE
    segments.remove()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [-FRAME, FRAME])
def test_a_segment_of_another_length_is_rejected(segment_request: SegmentRequest, kind: str, change: int) -> None:
    leave_pages(segment_request, 3)
    path = path_of(segment_request, kind)
    os.truncate(path, path.stat().st_size + change)
    with pytest.raises(UnfitError, match="shorter or longer"):
        take(segment_request)
    take(fresh(segment_request)).remove()


@pytest.mark.parametrize("field", [64, 72, 80], ids=["index_bytes", "locks_bytes", "arena_bytes"])
def test_a_header_with_another_size_of_a_segment_is_rejected(segment_request: SegmentRequest, field: int) -> None:
    """A daemon that adopted an arena of 0 bytes would reject every store."""
    leave_pages(segment_request, 8)
    write_at(path_of(segment_request, "index"), field, bytes(8))
    with pytest.raises(UnfitError, match="offsets in the index are invalid"):
        take(segment_request)
    take(fresh(segment_request)).remove()


def test_an_empty_segment_is_rejected_for_a_reason_of_its_own(segment_request: SegmentRequest) -> None:
    """The error of an earlier system call said that a file was missing, or that memory was short for a moment."""
    empty = os.memfd_create("empty")
    with contextlib.suppress(FileNotFoundError):
        os.stat("/nowhere")  # noqa: PTH116  Path.stat() would make other calls
    with pytest.raises(OSError, match="Invalid argument"):
        Observer(empty, empty)
    os.close(empty)
    leave_pages(segment_request, 3)
    os.truncate(path_of(segment_request, "locks"), 0)
    with pytest.raises(UnfitError, match="cannot be mapped: Invalid argument"):
        take(segment_request)
    take(fresh(segment_request)).remove()


def test_segments_that_were_not_made_together_are_rejected(segment_request: SegmentRequest) -> None:
    leave_pages(segment_request, 3)
    locks = path_of(segment_request, "locks").read_bytes()
    take(fresh(segment_request)).release()
    path_of(segment_request, "locks").write_bytes(locks)
    with pytest.raises(ShmError, match="belong to another index"):
        take(segment_request)
    take(fresh(segment_request)).remove()


@pytest.mark.parametrize("leftovers", Leftovers)
@pytest.mark.parametrize(
    "there",
    [
        {"index": 0},
        {"index": 0, "locks": 0, "arena": 0},
        {"index": GEOMETRY.sizes[0], "locks": GEOMETRY.sizes[1], "arena": GEOMETRY.sizes[2]},
        {"index": GEOMETRY.sizes[0], "locks": GEOMETRY.sizes[1]},
        {"index": GEOMETRY.sizes[0], "arena": GEOMETRY.sizes[2]},
        {"index": GEOMETRY.sizes[0], "locks": 0, "arena": 0},
        {"index": 10, "locks": 10, "arena": 10},
        {"locks": GEOMETRY.sizes[1]},
        {"arena": 1},
    ],
    ids=str,
)
def test_unfinished_segments_are_replaced(
    segment_request: SegmentRequest, there: dict[str, int], leftovers: Leftovers
) -> None:
    for kind, size in there.items():
        path_of(segment_request, kind).touch()
        os.truncate(path_of(segment_request, kind), size)
    segments = take(msgspec.structs.replace(segment_request, leftovers=leftovers))
    assert segments.origin is Origin.MADE
    assert sound(segments)
    segments.remove()


@pytest.mark.parametrize("gone", [(), ("arena",), ("arena", "locks"), ("index",)], ids=str)
def test_partly_removed_segments_are_replaced(segment_request: SegmentRequest, gone: tuple[str, ...]) -> None:
    leave_pages(segment_request, 3)
    segments = take(segment_request)
    segments.owner.close()
    segments.release()
    for kind in gone:
        path_of(segment_request, kind).unlink()
    segments = take(segment_request)
    assert segments.origin is Origin.MADE
    segments.remove()
