"""Segments are made, adopted, locked and removed; unusable segments are rejected without losing a page."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

import msgspec
import pytest

from anonymous_segments import attach
from child_process import in_child
from named_segments import KINDS, files, fresh, path_of, sound
from numbered_pages import GEOMETRY, held, leave_pages, session_of
from pagetier.shm._core import Observer, Owner, Session, ShmError
from pagetier.shm.segment_files import lock, survey
from pagetier.shm.segments import Origin, SegmentRequest, Segments, UnfitError, take


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


def test_new_segments_have_memory_except_for_the_ring_of_events(segment_request: SegmentRequest) -> None:
    """A daemon must not be killed by a full /dev/shm when it writes what lies after the ring."""
    segments = take(segment_request)
    after_ring = GEOMETRY.at_events + GEOMETRY.events_bytes
    with path_of(segment_request, "index").open("rb") as index:
        assert os.lseek(index.fileno(), 0, os.SEEK_HOLE) >= GEOMETRY.at_events
        assert after_ring < os.lseek(index.fileno(), after_ring, os.SEEK_HOLE) == GEOMETRY.sizes[0]
    segments.remove()


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


def test_a_fifo_of_another_user_does_not_stop_a_survey(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "theirs.index")
    writer = os.open(tmp_path / "theirs.index", os.O_RDWR)  # without it, the mistake would hang and not fail
    try:
        assert survey(tmp_path) == []
    finally:
        os.close(writer)
    assert survey(tmp_path) == []


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
