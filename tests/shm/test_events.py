"""Tests the ring of events and the location of pages, through the bindings of the daemon and of an engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from index_with_disk import GEOMETRY, Place, key, u32, u64
from pagetier.shm._core import KEY_BYTES, EventReason, EventsResult, SeenEvents, TierFlag, WriteRule

MEMORY, DISK, BOTH = TierFlag.MEMORY, TierFlag.DISK, TierFlag.BOTH


@pytest.fixture
def place() -> Place:
    place = Place()
    place.owner.disk_open(100, WriteRule.THROUGH)
    place.owner.disk_complete()
    place.session.read_events()
    place.owner.serve_events()
    assert place.session.read_events().result == EventsResult.MISSED
    return place


def listed(events: SeenEvents) -> list[tuple[bytes, int, int, int]]:
    assert events.result == EventsResult.READ
    keys = [events.keys[at : at + KEY_BYTES] for at in range(0, len(events.keys), KEY_BYTES)]
    return list(zip(keys, events.tiers, events.came, events.reasons, strict=True))


def damage(place: Place) -> None:
    place.owner.disk_damaged(key("a"))


def leave_disk(place: Place) -> None:
    place.owner.flush(-1, TierFlag.DISK)


CHANGES: list[tuple[Callable[[Place], object], list[tuple[int, int, int]], int]] = [
    (lambda place: place.store("a"), [(MEMORY, 1, EventReason.STORED)], MEMORY),
    (lambda place: place.write(), [(DISK, 1, EventReason.WRITTEN)], BOTH),
    (lambda place: place.evict_all(), [(MEMORY, 0, EventReason.EVICTED)], DISK),
    (damage, [(DISK, 0, EventReason.LOST)], 0),
    (lambda place: place.store("a"), [(MEMORY, 1, EventReason.STORED)], MEMORY),
    (lambda place: place.write(), [(DISK, 1, EventReason.WRITTEN)], BOTH),
    (leave_disk, [(DISK, 0, EventReason.FLUSHED)], MEMORY),
    (lambda place: place.owner.flush(-1, TierFlag.BOTH), [(MEMORY, 0, EventReason.FLUSHED)], 0),
]


def test_each_change_of_a_page_is_one_event_and_locate_knows_it(place: Place) -> None:
    for change, expected, tiers in CHANGES:
        change(place)
        assert listed(place.session.read_events()) == [(key("a"), *one) for one in expected]
        assert place.session.locate(key("a") + key("b")) == bytes([tiers, 0])
    assert listed(place.session.read_events()) == []
    assert place.sound()


def test_locating_a_page_is_no_use_of_it_and_pins_nothing(place: Place) -> None:
    place.store("a")
    place.store("b")
    assert place.session.locate(key("a") * 1000) == bytes([MEMORY]) * 1000
    place.owner.evict(GEOMETRY.frames - 1, 1)
    assert list(place.session.locate(key("a") + key("b"))) == [0, MEMORY]


def test_a_reader_notices_that_events_were_overwritten(place: Place) -> None:
    for _ in range(GEOMETRY.events_bytes // (KEY_BYTES + 8) // 2 + 1):
        place.store("a")
        place.owner.flush(-1, TierFlag.MEMORY)
    assert place.session.read_events().result == EventsResult.MISSED
    assert listed(place.session.read_events()) == []
    place.store("b")
    assert [one[0] for one in listed(place.session.read_events())] == [key("b")]


@pytest.mark.parametrize("change", ["daemon", "disk closes", "disk is reported"])
def test_a_reader_notices_changes_that_were_not_recorded(place: Place, change: str) -> None:
    place.store("a")
    place.write()
    owner = place.owner
    if change == "daemon":
        owner = place.memory.adopted(alive=1 << place.slot)
    elif change == "disk closes":
        owner.disk_close()
    else:
        owner.disk_report(key("b"), u64(4096), u32(place.space), u64(1))
        owner.disk_complete()
    assert place.session.read_events().result == EventsResult.OFF
    owner.serve_events()
    assert place.session.read_events().result == EventsResult.MISSED
    assert place.session.disk_complete == (change == "disk is reported")
    expected = {"daemon": [MEMORY, 0], "disk closes": [MEMORY, 0], "disk is reported": [BOTH, DISK]}[change]
    assert list(place.session.locate(key("a") + key("b"))) == expected


def test_nothing_is_recorded_without_readers(place: Place) -> None:
    place.owner.reap(place.slot)
    place.owner.serve_events()
    other = place.memory.session(place.slot)
    assert other.read_events().result == EventsResult.OFF


def test_the_disk_is_complete_when_each_open_device_is(place: Place) -> None:
    owner, session = place.owner, place.session
    owner.disk_open(100, WriteRule.THROUGH, 1)
    assert not session.disk_complete
    owner.disk_complete(1)
    assert session.disk_complete
    owner.disk_close(0)
    assert session.disk_complete
    owner.disk_complete(0)  # of a device that is closed
    assert session.disk_complete
    owner.disk_close(1)
    assert not session.disk_complete


def test_pages_of_one_device_are_events_while_another_one_is_opened(place: Place) -> None:
    place.owner.disk_open(100, WriteRule.THROUGH, 1)
    place.store("a")
    place.session.read_events()
    place.write()
    assert [(one[0], one[1], one[2]) for one in listed(place.session.read_events())] == [(key("a"), DISK, 1)]
