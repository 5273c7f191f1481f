"""Segments are made, adopted, locked and removed; unusable segments are rejected without losing a page."""

from __future__ import annotations

import mmap
import os
import re
import resource
import struct
from pathlib import Path

import msgspec
import pytest

from anonymous_segments import attach
from forked_child import in_child
from numbered_pages import FRAME, GEOMETRY, held, leave_pages, session_of
from pagetier.shm._core import FORMAT, Observer, Owner, Session, ShmError, TierFlag
from pagetier.shm.segment_files import lock
from pagetier.shm.segments import Leftovers, Origin, SegmentRequest, Segments, UnfitError, take

KINDS = ("index", "locks", "arena")
SHM = Path("/dev/shm")


def files(segment_request: SegmentRequest) -> list[Path]:
    return sorted(SHM.glob(f"{segment_request.name}.*"))


def path_of(segment_request: SegmentRequest, kind: str) -> Path:
    return SHM / f"{segment_request.name}.{kind}"


def sound(segments: Segments) -> bool:
    return segments.owner.check_integrity() == []


def fresh(segment_request: SegmentRequest) -> SegmentRequest:
    return msgspec.structs.replace(segment_request, leftovers=Leftovers.DISCARD)


def test_segments_are_made_used_released_adopted_and_removed(segment_request: SegmentRequest) -> None:
    segments = take(segment_request)
    assert segments.origin is Origin.MADE
    assert sound(segments)
    assert [path.stat().st_size for path in (path_of(segment_request, kind) for kind in KINDS)] == list(GEOMETRY.sizes)
    assert {path.stat().st_mode & 0o777 for path in files(segment_request)} == {0o600}
    incarnation = segments.owner.header().incarnation
    segments.release()
    assert len(files(segment_request)) == 3

    segments = take(segment_request)
    assert segments.origin is Origin.ADOPTED
    assert segments.owner.header().incarnation == incarnation + 1
    segments.remove()
    assert files(segment_request) == []


def test_pages_outlive_the_daemon(segment_request: SegmentRequest) -> None:
    leave_pages(segment_request, 8)
    segments = take(segment_request)
    assert held(segments, range(10)) == list(range(8))
    segments.remove()


def test_an_adopted_arena_is_whole_after_it_was_populated(segment_request: SegmentRequest) -> None:
    """The previous daemon may have allocated memory on use, or may have been killed while it populated the arena."""
    take(segment_request).release()
    segments = take(segment_request)
    assert not segments.whole
    segments.owner.populate(0, segments.owner.header().arena_bytes)
    assert segments.whole
    segments.remove()


def test_removed_segments_are_marked_as_closed(segment_request: SegmentRequest) -> None:
    segments = take(segment_request)
    session = session_of(segments.descriptors(), attach(segments.owner, 1))
    assert not session.closed
    segments.remove()
    assert session.closed
    assert session.usable, "the pinned pages are not readable"


def test_a_second_daemon_is_rejected_while_the_first_runs(segment_request: SegmentRequest) -> None:
    first = take(segment_request)
    for _ in range(2):
        with pytest.raises(ShmError, match=f"another daemon uses segments '{segment_request.name}'"):
            take(segment_request)
        with pytest.raises(ShmError, match="another daemon uses"):
            take(fresh(segment_request))
    assert in_child(lambda: take(segment_request)) == 1
    assert sound(first) and len(files(segment_request)) == 3
    first.release()
    take(segment_request).remove()


def test_a_waiting_daemon_is_rejected_if_a_third_one_is_faster(
    segment_request: SegmentRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first daemon removed its segments, and a third daemon made new ones before the second one did."""
    first = take(segment_request)
    others: list[Segments] = []

    def lock_late(name: str, index: int) -> None:
        monkeypatch.undo()
        first.remove()
        others.append(take(segment_request))
        lock(name, index)

    monkeypatch.setattr("pagetier.shm.segments.lock", lock_late)
    with pytest.raises(ShmError, match="another daemon uses"):
        take(segment_request)
    assert sound(others[0]) and len(files(segment_request)) == 3
    others[0].remove()


def test_the_lock_ends_with_the_daemon_not_with_its_clients(segment_request: SegmentRequest) -> None:
    """Clients map descriptors of their own, which keep the memory but never the lock."""
    first = take(segment_request)
    session = session_of(first.descriptors(), attach(first.owner, 1))
    owner = first.owner
    first.release()
    second = take(segment_request)
    assert session.usable and owner.header().incarnation == second.owner.header().incarnation
    second.remove()


def test_read_only_descriptors_cannot_be_written_to(segment_request: SegmentRequest) -> None:
    segments = take(segment_request)
    index, locks = segments.read_only_descriptors()
    observer = Observer(index, locks)
    assert observer.header().frames == GEOMETRY.frames
    with pytest.raises(PermissionError):
        Owner(index, locks, locks)
    with pytest.raises(PermissionError):
        Session(index, locks, locks, 0)
    for descriptor in (index, locks):
        os.close(descriptor)
    segments.remove()


def test_a_client_cannot_write_to_the_index(segment_request: SegmentRequest) -> None:
    segments = take(segment_request)
    index, locks, arena = segments.descriptors()
    with pytest.raises(PermissionError):
        Owner(index, locks, arena)
    for descriptor in (index, locks, arena):
        os.close(descriptor)
    segments.remove()


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
    with path_of(segment_request, "index").open("r+b") as index:
        index.seek(8)
        index.write(struct.pack("<I", FORMAT + 1))
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
    with path_of(segment_request, "index").open("r+b") as index:
        index.seek(field)
        index.write(bytes(8))
    with pytest.raises(UnfitError, match="offsets in the index are invalid"):
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


def test_no_segment_is_made_if_memory_is_short(segment_request: SegmentRequest) -> None:
    def check_room() -> None:
        raise ShmError("no room")

    with pytest.raises(ShmError, match="no room"):
        take(msgspec.structs.replace(segment_request, check_room=check_room))
    assert files(segment_request) == []
    leave_pages(segment_request, 3)
    segments = take(msgspec.structs.replace(segment_request, check_room=check_room))
    assert held(segments, range(3)) == [0, 1, 2]
    segments.remove()


@pytest.mark.parametrize("spare", range(1, 4))
def test_a_shortage_of_descriptors_loses_no_page(segment_request: SegmentRequest, spare: int) -> None:
    """A momentary error is no reason to drop pages."""
    leave_pages(segment_request, 3)

    def starve() -> None:
        highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
        for descriptor in range(highest):
            try:
                os.fstat(descriptor)
            except OSError:
                os.dup2(0, descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + spare, highest + spare))
        with pytest.raises((OSError, ShmError)) as caught:
            take(segment_request)
        assert re.search("Too many open files|maximum number of files open", str(caught.value)), caught.value
        assert not isinstance(caught.value, UnfitError), "the error advises to drop the pages"

    assert in_child(starve) == 0
    segments = take(segment_request)
    assert segments.origin is Origin.ADOPTED
    assert held(segments, range(3)) == [0, 1, 2]
    segments.remove()


def test_no_slot_is_granted_if_all_are_in_use(segment_request: SegmentRequest) -> None:
    segments = take(segment_request)
    slots = [attach(segments.owner, token) for token in range(56)]
    assert sorted(slots) == list(range(56))
    assert attach(segments.owner, 56) == -1
    assert attach(segments.owner, 7) == slots[7], "an attached session did not keep its slot"
    segments.owner.reap(slots[30])
    assert attach(segments.owner, 56) == 30
    segments.remove()
