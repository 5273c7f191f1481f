"""The queue of pages to write to the fleet: what was granted, in order, bounded in bytes and in rate."""

from __future__ import annotations

import struct

import pytest

from page_reservations import answer_rows
from pagetier.daemon.fleet.write_through import WriteThrough
from pagetier.shm._core import ReserveOutcome, page_requests
from pagetier.shm.page_rows import PAGES_TO_WRITE, PageToWrite
from pagetier.shm.protocol import ProtocolError, Reserve, Reserved, Space
from pagetier.tiers.base import TOO_LARGE
from pagetier.tiers.worker_protocol import Command, Stored, Write, Wrote
from virtual_time_loop import OwnTimeLoop

SPACE = Space(b"d" * 32, "model", 16)
MIB = 1 << 20
GRANTED, PRESENT = ReserveOutcome.GRANTED, ReserveOutcome.PRESENT


def pages_of(write: Write) -> list[PageToWrite]:
    return list(PAGES_TO_WRITE.read(write.pages))


class Queue:
    """A queue whose worker is this object."""

    def __init__(self, time: OwnTimeLoop) -> None:
        self.time = time
        self.sent: list[Write] = []
        self.writes = WriteThrough(1 << 30)
        self.writes.begin(self.send)

    def send(self, command: Command) -> None:
        assert isinstance(command, Write)
        self.sent.append(command)

    def store(self, names: str, outcomes: list[int] | None = None, size: int = MIB, part: int = 0) -> None:
        count = len(names)
        keys = b"".join(name.encode() * 32 for name in names)
        request = Reserve(1, SPACE, part, 2, page_requests(keys, struct.pack(f"<{count}Q", *[size] * count)))
        entries, serials = struct.pack(f"<{count}I", *range(count)), struct.pack(f"<{count}Q", *range(count))
        response = Reserved(1, answer_rows(bytes(outcomes or [GRANTED] * count), entries, serials))
        self.writes.note(request, response, size * count)

    def after(self, seconds: float) -> list[str]:
        """Returns the names of the pages that are written after so many seconds."""
        self.time.passes(seconds)
        before = len(self.sent)
        self.writes.take_due()
        self.writes.send_due()
        return ["".join(chr(page.key[0]) for page in pages_of(write)) for write in self.sent[before:]]

    def answer(self, *stored: Stored, why: str = "broken", saved: int = 0) -> str:
        write = self.sent[-1]
        pages = zip(pages_of(write), stored, strict=False)
        nbytes = sum(page.size for page, ended in pages if ended is Stored.DONE) - saved
        return self.writes.wrote(Wrote(write.number, bytes(stored), why, nbytes))


@pytest.fixture
def queue(virtual_time: OwnTimeLoop) -> Queue:
    return Queue(virtual_time)


def test_what_was_granted_for_part_0_is_written_once_half_a_second_later(queue: Queue) -> None:
    queue.store("abc", [GRANTED, PRESENT, GRANTED])
    queue.store("xy", part=1)
    assert queue.after(0.4) == [] and queue.after(0.2) == ["ac"] and queue.after(10.0) == []
    write = queue.sent[0]
    assert [(page.entry, page.serial) for page in pages_of(write)] == [(0, 0), (2, 2)]
    assert {write.spaces[page.space] for page in pages_of(write)} == {SPACE} and queue.writes.queued_bytes == 0


def test_at_most_two_writes_of_32_mib_are_in_progress(queue: Queue) -> None:
    queue.store("abcdefgh", size=16 * MIB)
    assert queue.after(1.0) == ["ab", "cd"] and queue.writes.queued_bytes == 64 * MIB
    queue.answer(Stored.DONE, Stored.PRESENT)
    assert queue.after(0.1) == ["ef"]
    assert queue.writes.counts.written == 1 and queue.writes.counts.present == 1


def test_a_write_of_small_pages_has_so_many_that_s3_can_be_asked_about_each_in_time(queue: Queue) -> None:
    keys = b"".join(number.to_bytes(32, "little") for number in range(3000))
    request = Reserve(1, SPACE, 0, 1, page_requests(keys, struct.pack("<3000Q", *[4096] * 3000)))
    entries, serials = struct.pack("<3000I", *range(3000)), struct.pack("<3000Q", *range(3000))
    queue.writes.note(request, Reserved(1, answer_rows(bytes([GRANTED] * 3000), entries, serials)), 3000 * 4096)
    queue.time.passes(1.0)
    queue.writes.take_due()
    queue.writes.send_due()
    assert [len(pages_of(write)) for write in queue.sent] == [1024, 1024]
    assert queue.writes.queued_bytes == 952 * 4096


def test_a_page_that_is_not_complete_is_tried_twice_more(queue: Queue) -> None:
    queue.store("a")
    assert queue.after(1.0) == ["a"]
    queue.answer(Stored.GONE)
    assert queue.after(1.9) == [] and queue.after(0.2) == ["a"]
    queue.answer(Stored.GONE)
    assert queue.after(7.9) == [] and queue.after(0.2) == ["a"]
    queue.answer(Stored.GONE)
    assert queue.after(100.0) == [] and queue.writes.counts.gone == 1 and queue.writes.queued_bytes == 0


def test_what_does_not_fit_is_dropped_from_the_tail(queue: Queue) -> None:
    queue.store("abcdefgh", size=64 * MIB)
    queue.store("xyz", size=64 * MIB)
    assert queue.after(1.0) == ["a", "b"] and queue.writes.counts.dropped == 4 + 3
    queue.writes.drop_all()
    assert queue.writes.counts.dropped == 4 + 3 + 2 and queue.writes.queued_bytes == 0


def test_ranks_take_no_room_for_a_page_twice(queue: Queue) -> None:
    for part in reversed(range(8)):
        queue.store("abcd", size=64 * MIB, part=part)
    assert queue.after(1.0) == ["a", "b"] and queue.writes.counts.dropped == 0


def test_a_queue_that_is_not_sent_is_bounded(queue: Queue) -> None:
    for _ in range(1000):
        queue.store("abcd", size=16 * MIB)
        queue.time.passes(1.0)
        queue.writes.take_due()
    assert queue.writes.queued_bytes == 256 * MIB and queue.writes.counts.dropped == 4000 - 16
    assert len(queue.writes._granted) == 0 and len(queue.writes._ready) == 16


def test_the_rate_limits_what_is_sent(queue: Queue) -> None:
    queue.writes.rate, nbytes = 8 * MIB, 0
    for _ in range(100):
        queue.store("abcd")
        for names in queue.after(0.1):
            nbytes += len(names) * MIB
            queue.answer(*[Stored.DONE] * len(names))
    assert 70 * MIB < nbytes < 110 * MIB


def test_what_compression_saves_is_not_charged(queue: Queue) -> None:
    queue.writes.rate = MIB
    queue.store("abcd", size=MIB)
    assert queue.after(1.0) == ["abcd"]  # one second of the rate was saved up, and a batch is not divided
    assert queue.after(1.5) == []
    queue.answer(*[Stored.DONE] * 4, saved=2 * MIB)
    assert (queue.writes.counts.written_bytes, queue.writes.counts.stored_bytes) == (4 * MIB, 2 * MIB)
    queue.store("e", size=MIB)
    assert queue.after(0.75) == ["e"]


@pytest.mark.parametrize("unsent", [Stored.PRESENT, Stored.GONE, Stored.SKIPPED])
def test_what_is_not_sent_is_not_charged(queue: Queue, unsent: Stored) -> None:
    queue.writes.rate = MIB
    queue.store("abcd", size=MIB)
    assert queue.after(1.0) == ["abcd"]
    queue.answer(Stored.FAILED, unsent, unsent, unsent)
    queue.writes.drop_all()
    queue.store("e", size=MIB)
    assert queue.after(0.75) == ["e"]


def test_what_was_written_without_a_rate_is_not_charged_later(queue: Queue) -> None:
    for name in "abc":
        queue.store(name, size=16 * MIB)
        assert queue.after(1.0) == [name]
        queue.answer(Stored.DONE)
    queue.writes.rate = MIB
    queue.store("d", size=MIB)
    assert queue.after(1.0) == ["d"]


def test_a_page_that_failed_is_tried_again_with_growing_pauses_until_the_fleet_has_it(queue: Queue) -> None:
    pauses = list[float]()
    queue.store("ab")
    assert queue.after(1.0) == ["ab"]
    assert queue.answer(Stored.DONE, Stored.FAILED) == "broken"
    with pytest.raises(ProtocolError):
        queue.answer(Stored.DONE)
    for _ in range(8):
        pause = 0.0
        while not queue.after(0.5):
            pause += 0.5
        pauses.append(pause + 0.5)
        assert queue.writes.counts.waiting == 1 and queue.writes.trouble == "broken"
        queue.answer(Stored.FAILED)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert queue.after(30.0) == ["b"]
    queue.answer(Stored.PRESENT, why="")  # an earlier write was late
    counts = queue.writes.counts
    assert (counts.written, counts.present, counts.failed, counts.waiting) == (2, 0, 0, 0)
    assert queue.writes.trouble == "" and queue.writes.queued_bytes == 0


def test_a_page_that_leaves_memory_after_a_failure_is_given_up_by_name(queue: Queue) -> None:
    queue.store("ab")
    queue.after(1.0)
    queue.answer(Stored.FAILED, Stored.SKIPPED)
    assert queue.after(0.0) == ["b"], "one page that fails does not keep the others from being written"
    queue.answer(Stored.DONE, why="")
    assert queue.after(1.0) == ["a"] and queue.answer(Stored.GONE, why="") == ""
    assert (queue.writes.counts.failed, queue.writes.given_up, queue.writes.trouble) == (1, "broken", "")
    assert queue.after(100.0) == [] and queue.writes.counts.gone == 0


def test_a_page_that_is_too_large_is_given_up_at_once(queue: Queue) -> None:
    queue.store("ab")
    queue.after(1.0)
    assert queue.answer(Stored.NO_ROOM, Stored.DONE, why="") == ""
    assert (queue.writes.counts.failed, queue.writes.given_up, queue.writes.counts.written) == (1, TOO_LARGE, 1)
    assert queue.after(100.0) == [] and queue.writes.queued_bytes == 0


def test_what_was_not_tried_or_failed_goes_before_what_came_later(queue: Queue) -> None:
    queue.store("abc")
    queue.after(1.0)
    queue.store("xyz")
    queue.answer(Stored.FAILED, Stored.SKIPPED, Stored.SKIPPED)
    assert queue.after(1.0) == ["abcxyz"]


def test_the_end_of_a_worker_loses_no_page(queue: Queue) -> None:
    queue.store("ab")
    queue.after(1.0)
    queue.store("c")
    queue.writes.lost()
    queue.writes.begin(queue.send)
    assert queue.after(1.0) == ["abc"]
    assert queue.writes.oldest(queue.time.time() + 7.0) == (3, 7.0)
    queue.answer(*[Stored.DONE] * 3, why="")
    assert (queue.writes.counts.written, queue.writes.counts.waiting) == (3, 0)
    assert queue.writes.oldest(queue.time.time() + 7.0) == (0, 0.0)
