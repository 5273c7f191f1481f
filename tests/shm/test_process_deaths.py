"""Daemons and engines die at any instruction; the next daemon adopts all complete pages."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import msgspec
import pytest

import page_reservations
from anonymous_segments import DAY_NS, Memory, attach
from child_process import deaths, kill, spawn
from elapsed import processor_s
from named_segments import files, sound
from numbered_pages import (
    FRAME,
    GEOMETRY,
    frames_of,
    held,
    holds,
    key_of,
    leave_pages,
    reserve,
    session_of,
    store,
    write,
)
from pagetier.shm._core import KEY_BYTES, Owner, Pins
from pagetier.shm.geometry import Geometry
from pagetier.shm.process import Process
from pagetier.shm.segments import Origin, SegmentRequest, Segments, take


def take_over(segment_request: SegmentRequest) -> Segments:
    """Adopts the segments as a daemon that has waited until no dead process can write any more."""
    segments = take(segment_request)
    for attachment in segments.owner.attachments():
        if not Process(attachment.pid, attachment.started).lives():
            segments.owner.reap(attachment.slot)
    return segments


def leaves_no_trace(function: Any) -> bool:
    """Returns whether a call at most reads: a daemon that dies before or after it leaves the same to the next one."""
    owner = function.__module__ or type(function.__self__).__module__
    return owner in {"builtins", "collections", "sys"} or function.__name__ in {"fspath", "fstat", "geteuid", "stat"}


def visibly(action: Callable[[], object]) -> Callable[[], None]:
    """Returns the action, of whose steps deaths() takes those that may leave a trace."""

    def run() -> None:
        count = sys.getprofile()
        assert count is not None

        def count_some(frame: FrameType, event: str, function: object) -> None:
            if event == "c_call" and not leaves_no_trace(function):
                count(frame, "c_call", function)

        sys.setprofile(count_some)
        action()

    return run


def test_death_while_segments_are_made(segment_request: SegmentRequest) -> None:
    for step in deaths(visibly(lambda: take_over(segment_request))):
        segments = take_over(segment_request)
        assert sound(segments), f"died at step {step}"
        assert segments.owner.free_frames == GEOMETRY.frames
        segments.remove()
        assert files(segment_request) == []
    take_over(segment_request).remove()


def test_death_while_segments_are_adopted(segment_request: SegmentRequest) -> None:
    leave_pages(segment_request, 5)
    for step in deaths(visibly(lambda: take_over(segment_request))):
        segments = take_over(segment_request)
        assert segments.origin is Origin.ADOPTED
        assert sound(segments), f"died at step {step}"
        assert held(segments, range(6)) == list(range(5))
        segments.release()
    take_over(segment_request).remove()


def test_death_while_segments_are_removed(segment_request: SegmentRequest) -> None:
    def prepare() -> None:
        if not files(segment_request):
            leave_pages(segment_request, 2)

    seen = set()
    for step in deaths(visibly(lambda: take_over(segment_request).remove()), prepare):
        segments = take_over(segment_request)
        seen.add(segments.origin)
        assert sound(segments), f"died at step {step}"
        assert held(segments, range(3)) == ([0, 1] if segments.origin is Origin.ADOPTED else [])
        segments.remove()
    assert seen == set(Origin)


class Granted(msgspec.Struct):
    """A daemon's message to a process: its slot, and the location of its pages."""

    slot: int
    entries: bytes
    serials: bytes

    def entry(self, page: int) -> bytes:
        return self.entries[4 * page : 4 * page + 4]

    def serial(self, page: int) -> bytes:
        return self.serials[8 * page : 8 * page + 8]


def serve(segment_request: SegmentRequest, pid: int, writer: int) -> None:
    """Acts as a daemon that grants pages 0, 1 and 2 to a process and page 3 to itself, and sends a message."""
    owner = take_over(segment_request).owner
    process = Process.of(pid)
    slot = owner.attach(pid, os.getuid(), process.started, 1, "test")
    _, entries, serials = reserve(owner, slot, [0, 1, 2])
    reserve(owner, attach(owner, 2), [3])
    os.write(writer, msgspec.msgpack.encode(Granted(slot, entries, serials)))
    signal.pause()


@pytest.fixture
def granted(segment_request: SegmentRequest) -> Granted:
    """Returns the message of a daemon that was killed after sending it."""
    me = os.getpid()
    reader, writer = os.pipe()
    child = spawn(lambda: serve(segment_request, me, writer))
    grant = msgspec.msgpack.decode(os.read(reader, 1000), type=Granted)
    kill(child)
    os.close(reader)
    os.close(writer)
    return grant


def descriptors(segment_request: SegmentRequest) -> list[int]:
    return [os.open(f"/dev/shm/{segment_request.name}.{kind}", os.O_RDWR) for kind in ("index", "locks", "arena")]


def test_an_engine_keeps_working_while_daemons_die(segment_request: SegmentRequest, granted: Granted) -> None:
    """Its pins stay, it can publish its granted pages, and the pages of dead processes are released."""
    session = session_of(descriptors(segment_request), granted.slot)
    for page in (0, 1):
        write(session, granted.entry(page), page)
    assert session.publish(granted.entry(0), granted.serial(0), 0) == b"\1"
    pins = session.match(Pins, None, key_of(0) + key_of(1))
    assert len(pins) == 1

    segments = take_over(segment_request)
    owner: Owner = segments.owner
    assert [attachment.pid for attachment in owner.attachments()] == [os.getpid()]
    assert owner.evict(GEOMETRY.frames, 100) == 0, "the pinned page was evicted"
    assert holds(session, 0)
    assert session.publish(granted.entry(1), granted.serial(1), 0) == b"\1"
    assert holds(session, 1)
    session.abandon(granted.entry(2), granted.serial(2), 0)
    pins.release()
    assert owner.settle() == 0
    assert sound(segments)
    assert owner.header().used_frames == frames_of([0, 1])
    segments.remove()


def test_reservations_unknown_to_their_process_are_released(segment_request: SegmentRequest, granted: Granted) -> None:
    """The response to its request was lost when the daemon died."""
    session = session_of(descriptors(segment_request), granted.slot)
    segments = take_over(segment_request)
    assert segments.owner.header().used_frames == frames_of([0, 1, 2])
    segments.owner.keep_only(granted.slot, granted.serial(1))
    assert segments.owner.header().used_frames == frames_of([1])
    write(session, granted.entry(1), 1)
    assert session.publish(granted.entries, granted.serials, 0) == b"\0\1\0"
    assert [number for number in range(4) if holds(session, number)] == [1]
    segments.remove()


def test_a_page_that_was_given_up_does_not_count_as_adopted() -> None:
    """Its frames stay for a rank that still writes to them, and no match will ever find it."""
    memory = Memory(Geometry(FRAME, 4, 4, 4))
    owner = memory.adopted()
    ranks, space = (attach(owner, 1), attach(owner, 2)), owner.space(bytes(KEY_BYTES), "test", 16, 0, 0)
    key, size = b"a".ljust(KEY_BYTES), FRAME.to_bytes(8, "little")
    granted = [
        page_reservations.reserve(owner, slot, space, part, 2, DAY_NS, key, size) for part, slot in enumerate(ranks)
    ]
    memory.session(ranks[0]).abandon(granted[0].entries, granted[0].serials, 0)
    assert owner.settle() == 1
    del owner
    owner = memory.adopted(sum(1 << slot for slot in ranks))
    header = owner.header()
    assert (header.used_frames, header.pages, header.adopted, header.dropped) == (1, 0, 0, 0)
    assert owner.check_integrity() == []
    memory.close()


def seconds_of_attaching_again(pages: int) -> float:
    """Returns the processor time that a list of so many unwritten pages takes: the shortest of some."""
    memory = Memory(Geometry(FRAME, pages, pages, 4))
    owner, seconds = memory.adopted(), []
    slot, space = attach(owner, 1), owner.space(bytes(KEY_BYTES), "test", 16, 0, 0)
    keys, sizes = os.urandom(KEY_BYTES * pages), FRAME.to_bytes(8, "little") * pages
    serials = page_reservations.reserve(owner, slot, space, 0, 1, DAY_NS, keys, sizes).serials
    for _ in range(5):
        seconds.append(processor_s(lambda: owner.keep_only(slot, serials)))
    assert owner.open_entries == pages, "a page was released"
    memory.close()
    return min(seconds)


@pytest.mark.wall_clock
def test_the_time_of_attaching_again_grows_with_the_unwritten_pages() -> None:
    """Sixteen times the pages may take four times as long a page. With their square it would be sixteen times."""
    few, many = map(seconds_of_attaching_again, (2_000, 32_000))
    assert many < 4 * 16 * few, (few, many)


def test_the_order_of_eviction_survives_a_daemon(segment_request: SegmentRequest) -> None:
    """The oldest pages are evicted first, whichever daemon stored or used them."""
    segments = take_over(segment_request)
    session = session_of(segments.descriptors(), attach(segments.owner, 1))
    for number in range(100):
        store(segments.owner, session, [number])
    there = [number for number in range(100) if holds(session, number)]
    assert there == list(range(there[0], 100))
    assert holds(session, there[0]), "the page was evicted although it was used last"
    segments.release()
    segments = take_over(segment_request)
    store(segments.owner, session, list(range(100, 106)))
    still = [number for number in there if holds(session, number)]
    assert still[0] == there[0]
    assert len(there) > len(still) > 2
    assert still[1:] == there[-len(still) + 1 :]
    segments.remove()
