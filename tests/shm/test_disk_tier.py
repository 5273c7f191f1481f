"""The disk tier as the daemon's Python code uses it: writes, reads and evictions."""

from __future__ import annotations

import mmap

import pytest

from child_process import kill, spawn
from core_records import lock_words
from index_with_disk import FRAME, GEOMETRY, Place, ints, key, u32, u64
from pagetier.shm._core import (
    HISTORY_BYTES,
    KEY_BYTES,
    STATUS_BYTES,
    Observer,
    Pins,
    ReserveOutcome,
    TierFlag,
    WriteResult,
    WriteRule,
)
from pagetier.shm.page_rows import PAGES_TO_WRITE, PageToRead

FAR = 2**64 - 1  # a huge tick


def test_evicted_pages_are_found_on_disk_and_read_in(disk: Place) -> None:
    disk.store("a"), disk.store("b", 2 * FRAME)
    assert len(disk.write()) == 2 and disk.match("a", "b", "x") == (2, 2)
    disk.evict_all()
    assert disk.match("a", "b", "x") == (0, 2) and disk.match("x", "a") == (0, 0)
    first, second, absent = disk.fetch("a", "b", "x")
    granted = (disk.space, ReserveOutcome.GRANTED, 0)
    assert first == PageToRead(key("a"), FRAME, first.serial, first.entry, *granted)
    assert second == PageToRead(key("b"), 2 * FRAME, second.serial, second.entry, *granted)
    assert (absent.key, absent.size, absent.outcome) == (key("x"), 0, ReserveOutcome.ABSENT)
    assert disk.fetch("a")[0].outcome == ReserveOutcome.PENDING and disk.match("a", "b") == (0, 2)
    disk.fill(first.entry, first.serial, b"a" * FRAME)
    assert disk.match("a", "b") == (1, 2) and disk.load("a") == b"a" * FRAME
    assert disk.fetch("a")[0].outcome == ReserveOutcome.PRESENT
    disk.session.abandon(u32(second.entry), u64(second.serial), 0)
    assert disk.owner.settle() == 0 and disk.match("a", "b") == (1, 2) and disk.owner.disk_drops() == b""


def test_a_miss_and_a_repin_report_only_pinned_pages_as_available(disk: Place) -> None:
    disk.store("a")
    with disk.session.match(Pins, None, key("a")) as pins:
        again = disk.session.repin(Pins, None, pins.entries, pins.serials)
        assert (len(again), again.available_pages) == (1, 1)
        again.release()
    assert disk.match() == (0, 0) and disk.match("x") == (0, 0)


def test_write_orders_describe_the_pages_exactly(disk: Place) -> None:
    first, second = disk.store("a"), disk.store("b", 3 * FRAME - 1)
    pages = list(PAGES_TO_WRITE.read(disk.owner.start_writes(100, 100)))
    entries, reservations = u32(first, second), [page.reservation for page in pages]
    assert [(page.key, page.entry) for page in pages] == [(key("a"), first), (key("b"), second)]
    assert [page.size for page in pages] == [FRAME, 3 * FRAME - 1]
    assert u32(*reservations) == disk.owner.reservations(entries) and len({*reservations, 0}) == 3
    assert {(page.space, page.history) for page in pages} == {(disk.space, bytes(HISTORY_BYTES))}
    pins = disk.session.repin(Pins, None, entries, u64(*(page.serial for page in pages)))
    frames = [ints(disk.session.frames(entry), 4) for entry in (first, second)]
    assert len(pins) == 2 and [len(its) for its in frames] == [1, 3] and len({*frames[0], *frames[1]}) == 4
    pins.release()
    assert disk.owner.start_writes(100, 100) == b""
    assert disk.owner.flush(-1, TierFlag.BOTH) == (0, 2) and disk.owner.evict(8, 100) == 0


def test_write_orders_contain_no_tick_invented_by_a_client(disk: Place) -> None:
    """Another process writes ticks of the far future all the time, also while write orders are made."""
    for name in "abcdefgh":
        disk.store(name)

    def scribble() -> None:
        segment = mmap.mmap(disk.memory.descriptors[1], 0)
        ticks = lock_words(segment, GEOMETRY.entries)["tick"]
        while True:
            ticks[:] = FAR

    scribbler = spawn(scribble)
    try:
        for _ in range(3000):
            rows = disk.owner.start_writes(100, 100)
            assert max(page.stamp for page in PAGES_TO_WRITE.read(rows)) < FAR
            disk.owner.end_writes(rows, bytes([WriteResult.AGAIN]) * PAGES_TO_WRITE.count(rows))
    finally:
        kill(scribbler)


def test_write_orders_respect_their_limits(disk: Place) -> None:
    for name in "abcd":
        disk.store(name)
    assert disk.owner.start_writes(100, 0) == b"" == disk.owner.start_writes(0, 100)
    chosen = [disk.owner.start_writes(100, 1), disk.owner.start_writes(2, 100)]
    assert [PAGES_TO_WRITE.count(rows) for rows in chosen] == [1, 2]


def test_a_stamp_is_the_tick_moved_to_the_clock_of_the_disk(disk: Place) -> None:
    stamps: list[int] = []
    for offset in (0, 10**18, -(10**18)):
        disk.store("abc"[len(stamps)])
        stamps += [page.stamp for page in PAGES_TO_WRITE.read(disk.owner.start_writes(100, 100, 0, offset))]
    assert 0 < stamps[0] < 10**18 <= stamps[1] < 2 * 10**18 and stamps[2] == 0


@pytest.mark.parametrize("result", [WriteResult.FAILED, WriteResult.SKIPPED, WriteResult.AGAIN, 77])
def test_a_page_whose_write_failed_is_not_on_disk(disk: Place, result: int) -> None:
    disk.store("a")
    assert len(disk.write(result)) == 1 and disk.owner.header().disk_pages == 0
    header = disk.owner.header()
    assert header.disk_failed == (result == WriteResult.FAILED) and header.disk_skipped == (
        result == WriteResult.SKIPPED
    )
    assert bool(disk.write(result)) == (result not in (WriteResult.FAILED, WriteResult.SKIPPED))
    disk.owner.disk_rule(WriteRule.THROUGH)
    assert len(disk.write()) == 1 and disk.owner.header().disk_pages == 1


def test_the_write_rules_select_the_pages_to_write(place: Place) -> None:
    place.store("a"), place.store("b")
    assert place.write() == [] and place.owner.unwritten()[:2] == (0, 0)
    place.owner.disk_open(8, WriteRule.SECOND)
    assert place.write() == [] and place.owner.unwritten()[:2] == (0, 0)
    place.owner.disk_rule(WriteRule.THROUGH)
    assert place.owner.unwritten()[:2] == (2, 2 * FRAME)
    assert len(place.write()) == 2 and place.owner.unwritten()[:2] == (0, 0)


def test_frames_before_unwritten_end_at_the_first_unwritten_page(disk: Place) -> None:
    assert disk.owner.frames_before_unwritten(5) == 5
    disk.store("a")
    disk.write()
    disk.store("b", 2 * FRAME)
    assert disk.owner.frames_before_unwritten(100) == 5 + 1 and disk.owner.frames_before_unwritten(2) >= 2
    assert 0 <= disk.owner.frames_before_unwritten(0) <= 8 and disk.owner.frames_before_unwritten(2**64 - 1) == 6


def test_a_full_disk_evicts_the_coldest_pages(disk: Place) -> None:
    names = [f"page {n}" for n in range(11)]
    for name in names:
        disk.store(name)
        disk.write()
    assert disk.owner.disk_drops() == b"".join(map(key, names[:3])) and disk.owner.disk_drops() == b""
    header = disk.owner.header()
    assert header.disk_used_frames == header.disk_frames == 8 and header.disk_evicted == 3


def test_valid_pages_of_a_report_are_loaded_into_the_index(disk: Place) -> None:
    disk.store("other size")
    reported = {
        "good": (FRAME, disk.space),
        "no size": (0, disk.space),
        "too large": (9 * FRAME, disk.space),
        "no such space": (FRAME, 7),
        "unused space": (FRAME, 1),
        "other size": (FRAME + 1, disk.space),
    }
    keys = b"".join(map(key, reported))
    sizes, spaces = (list(column) for column in zip(*reported.values(), strict=True))
    disk.owner.disk_report(keys, u64(*sizes), u32(*spaces), u64(*[2**64 - 1] * len(reported)))
    assert disk.owner.disk_drops() == keys[KEY_BYTES:]
    disk.owner.disk_report(key("good"), u64(FRAME), u32(disk.space), u64(0))
    assert disk.owner.disk_drops() == b"" and disk.match("good") == (0, 1) and disk.match("other size") == (1, 1)
    assert disk.owner.header().disk_pages == 1


def test_a_report_that_exceeds_the_disk_is_truncated(disk: Place) -> None:
    names = [f"page {n}" for n in range(11)]
    keys = b"".join(map(key, names))
    disk.owner.disk_report(keys, u64(*[FRAME] * 11), u32(*[disk.space] * 11), u64(*range(11)))
    assert disk.owner.header().disk_pages == 8 and disk.owner.disk_drops() == keys[:96]
    disk.owner.disk_close()
    disk.owner.disk_report(key("late"), u64(FRAME), u32(disk.space), u64(0))
    assert disk.owner.header().disk_pages == 0 and disk.sound()


def test_a_corrupt_page_is_removed_from_index_and_disk(disk: Place) -> None:
    disk.store("a")
    disk.write()
    disk.evict_all()
    disk.owner.disk_damaged(key("a") + key("x") + key("a"))
    assert disk.match("a") == (0, 0) and disk.owner.disk_drops() == key("a")
    assert disk.owner.header().disk_damaged == 1


def test_a_flush_of_one_tier_keeps_the_other(disk: Place) -> None:
    disk.store("a")
    disk.write()
    assert disk.owner.flush(-1, TierFlag.MEMORY) == (1, 0) and disk.match("a") == (0, 1)
    assert disk.owner.flush(-1, TierFlag(0)) == (0, 0) and disk.owner.flush(7, TierFlag.DISK) == (0, 0)
    assert disk.owner.flush(disk.space, TierFlag.DISK) == (1, 0) and disk.match("a") == (0, 0)
    assert disk.owner.disk_drops() == key("a")


def test_the_tier_publishes_its_status(disk: Place) -> None:
    observer = Observer(*disk.memory.descriptors[:2])
    assert observer.status() == b""
    for text in (b"all is well", b"", b"\0" * STATUS_BYTES):
        disk.owner.publish_status(text)
        assert observer.status() == text
    with pytest.raises(ValueError, match=f"{STATUS_BYTES + 1} bytes"):
        disk.owner.publish_status(b"x" * (STATUS_BYTES + 1))
    assert observer.status() == b"\0" * STATUS_BYTES


def test_entries_out_of_range_are_ignored(disk: Place) -> None:
    beyond = u32(12, 0xFFFFFFFF)
    assert disk.owner.reservations(beyond) == bytes(8)
    assert disk.owner.tiers(beyond) == bytes(2)
    assert disk.session.frames(12) == disk.session.frames(0xFFFFFFFF) == b""
    disk.owner.count_fetched(1, 2, 3)
    header = disk.owner.header()
    assert (header.disk_read, header.disk_read_bytes, header.disk_missed) == (1, 2, 3)


def test_pages_take_the_slots_that_the_worker_reports(place: Place) -> None:
    place.owner.disk_open(16, WriteRule.THROUGH, 0, FRAME // 4)
    place.store("a"), place.store("b", 2 * FRAME)
    rows = place.owner.start_writes(100, 100)
    assert place.owner.disk_device().ordered_slots == 4 + 8, "as if they could not be compressed"
    place.owner.end_writes(rows, bytes([WriteResult.DONE] * 2), u32(3, 0))
    usage = place.owner.disk_device()
    assert (usage.slot_bytes, usage.slots, usage.used_slots, usage.ordered_slots) == (FRAME // 4, 16, 3 + 8, 0)
    assert (usage.pages, usage.bytes) == (2, 3 * FRAME)
    header = place.owner.header()
    assert (header.disk_frames, header.disk_used_frames) == (4, 3)
    assert place.owner.tenants() == [(3, 3)]
    place.owner.disk_report(key("c") + key("d"), u64(FRAME, FRAME), u32(*[place.space] * 2), u64(0, 1), 0, u32(1, 9))
    assert place.owner.disk_device().used_slots == 3 + 8 + 1 + 4
    assert place.sound()
    place.owner.disk_open(4, WriteRule.THROUGH)
    assert place.owner.disk_device()[:5] == (1, 4, 0, 0, FRAME)
    assert place.sound()


def test_a_device_that_shrinks_drops_no_page_that_is_being_read(disk: Place) -> None:
    disk.store("a"), disk.store("b")
    disk.write()
    disk.evict_all()
    (reading,) = disk.fetch("a")
    disk.owner.disk_shrink(8)
    assert disk.owner.disk_drops() == key("b"), "the slots of the other belong to it until its read has ended"
    assert disk.owner.disk_device().slots == 1 and disk.sound(), "nothing is used beyond the room that is left"
    disk.fill(reading.entry, reading.serial, b"a" * FRAME)
    assert disk.match("a", "b") == (1, 1) and disk.load("a") == b"a" * FRAME
    disk.owner.disk_shrink(8)
    assert disk.owner.disk_drops() == key("a") and disk.sound()


def test_a_device_that_shrinks_while_pages_are_written_has_room_for_them(disk: Place) -> None:
    disk.store("a"), disk.store("b")
    rows = [disk.owner.start_writes(1, 1) for _ in "ab"]
    disk.owner.disk_shrink(8)
    usage = disk.owner.disk_device()
    assert (usage.slots, usage.used_slots, usage.ordered_slots) == (2, 0, 2)
    assert disk.sound(), "doctor finds no page without room"
    disk.owner.end_writes(rows[0], bytes([WriteResult.DONE]))
    disk.owner.end_writes(rows[1], bytes([WriteResult.AGAIN]))
    disk.owner.disk_shrink(1)
    assert disk.owner.disk_device()[1:4] == (1, 1, 0) and disk.sound()
