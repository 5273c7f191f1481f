"""Idle namespaces are dropped, the oldest first; pages in use are never dropped."""

from __future__ import annotations

import mmap
import time
from array import array

import pytest

from anonymous_segments import DAY_NS
from core_records import lock_words
from index_with_disk import GEOMETRY, Place, key
from page_reservations import reserve
from pagetier.shm._core import KEY_BYTES, IdleResult, Pins, TierFlag, WriteResult

ANY_NS = 0
PLENTY = 1000


@pytest.fixture
def two(place: Place) -> Place:
    """Returns a full table of namespaces: a page "old" of one, and after it "new" of another."""
    place.store("old")
    name(place, "other")
    place.store("new")
    return place


def name(place: Place, space: str) -> None:
    """Sets the namespace of the pages that are stored from now on."""
    place.space = place.owner.space(space.encode().ljust(KEY_BYTES, b"."), space, 16, 0, 0)
    assert place.space >= 0


def drop(place: Place, idle_ns: int = ANY_NS) -> str:
    """Drops the next namespace. Returns its name, or "" if there is none."""
    found, _, space = place.owner.drop_idle(idle_ns, PLENTY)
    assert place.sound()
    if space is None:
        assert found == IdleResult.NOTHING
        return ""
    assert found == IdleResult.DROPPED and space.listed == 0
    return str(space.name)


def age(place: Place) -> int:
    """Makes all pages as old as the machine. Returns for how long a namespace is idle that is not used from now on."""
    lock_words(mmap.mmap(place.memory.descriptors[1], 0), GEOMETRY.entries)["tick"] = 1
    return time.monotonic_ns() // 2


def test_the_oldest_is_dropped_first(two: Place) -> None:
    assert two.owner.spare_spaces() == 0
    assert drop(two) == "space"
    assert (two.match("old"), two.match("new")) == ((0, 0), (1, 1))
    assert two.owner.spare_spaces() == 1
    assert drop(two) == "other"
    assert (drop(two), two.owner.spare_spaces()) == ("", 2)
    assert two.owner.header().flushed == 2


def test_a_record_without_pages_is_reused_by_another_namespace(two: Place) -> None:
    assert two.owner.space(b"third".ljust(32), "third", 16, 0, 0) == -1
    assert drop(two) == "space"
    name(two, "third")
    assert {space.name for space in two.owner.spaces()} == {"other", "third"}


def test_a_recently_used_namespace_is_not_dropped(two: Place) -> None:
    assert drop(two, DAY_NS) == ""
    assert two.match("old", "new") == (2, 2)


def test_a_match_counts_as_use(two: Place) -> None:
    """A match takes no lock and sends no message."""
    assert two.match("old") == (1, 1)
    assert drop(two) == "other"


def test_a_reservation_counts_as_use(two: Place) -> None:
    two.owner.space(b"s" * KEY_BYTES, "space", 16, 0, 0)
    assert drop(two) == "other"


def test_a_pinned_page_is_in_use(two: Place) -> None:
    with two.session.match(Pins, None, key("old")):
        assert drop(two) == "other"
        assert drop(two) == ""
    assert drop(two) == "space"


def test_a_page_that_is_being_written_is_in_use(two: Place) -> None:
    reserve(two.owner, two.slot, two.space, 0, 1, DAY_NS, key("open"), (1).to_bytes(8, "little"))
    assert drop(two) == "space"
    assert drop(two) == ""
    two.owner.keep_only(two.slot, b"")
    two.owner.settle()
    assert drop(two) == "other"


def test_a_turn_visits_at_most_the_given_number_of_pages(two: Place) -> None:
    for page in "abc":
        two.store(page)
    turns, pages, dropped = 0, 0, ["space"]
    assert drop(two) == "space"
    while dropped[-1] != "other":
        before = two.owner.header().pages
        found, pages, space = two.owner.drop_idle(ANY_NS, 1)
        assert before - two.owner.header().pages <= 1 and two.sound()
        assert (found == IdleResult.DROPPED) == (space is not None)
        dropped += [space.name] if space else []
        turns += 1
    assert pages == 4 and turns >= 8


@pytest.mark.parametrize("used", ["a", "d"])
def test_a_use_between_two_turns_ends_the_walk(two: Place, used: str) -> None:
    """The used page was visited already, or is the next one."""
    for page in "abcd":
        two.store(page)
    assert drop(two) == "space"
    idle_ns = age(two)
    assert two.owner.drop_idle(ANY_NS, 2).result == IdleResult.MORE
    assert two.match(used) == (1, 1)
    while (found := two.owner.drop_idle(idle_ns, 2).result) == IdleResult.MORE:
        pass
    assert found == IdleResult.NOTHING
    assert two.match(used) == (1, 1) and two.sound()


def test_a_page_used_while_its_namespace_is_dropped_is_kept(two: Place) -> None:
    for page in "abcd":
        two.store(page)
    assert drop(two) == "space"
    idle_ns = age(two)
    while not two.owner.drop_idle(ANY_NS, 1).pages:
        pass
    assert two.match("a") == (1, 1)
    while (found := two.owner.drop_idle(idle_ns, 1).result) == IdleResult.MORE:
        pass
    assert found == IdleResult.NOTHING
    assert two.match("a") == (1, 1) and two.sound()


def test_a_walk_restarts_if_its_page_was_evicted(two: Place) -> None:
    for page in "abcd":
        two.store(page)
    assert drop(two) == "space"
    assert two.owner.drop_idle(ANY_NS, 2).result == IdleResult.MORE
    two.owner.flush(two.space, TierFlag.BOTH)
    assert drop(two) == ""
    two.store("e")
    assert drop(two) == "other"


def limit(place: Place, memory: float, disk: float) -> None:
    """Sets the minimum shares of the tenant of the namespace "space"."""
    place.owner.set_quotas(array("d", (0, 1, 0, 1, memory, 1, disk, 1)), ["space"])


def test_a_namespace_that_a_minimum_needs_is_not_dropped(two: Place) -> None:
    limit(two, 1 / GEOMETRY.frames, 0)
    assert drop(two) == "other"
    assert (drop(two), two.match("old")) == ("", (1, 1))
    limit(two, 0, 0)
    assert drop(two) == "space"


def test_a_namespace_that_a_minimum_on_disk_needs_is_not_dropped(disk: Place) -> None:
    disk.store("old")
    disk.write()
    name(disk, "other")
    disk.store("new")
    limit(disk, 0, 0.5)
    assert drop(disk) == "other"
    assert (drop(disk), disk.match("old")) == ("", (1, 1))
    limit(disk, 0, 0)
    assert drop(disk) == "space"


def test_copies_on_disk_are_dropped_too(disk: Place) -> None:
    disk.store("both")
    disk.write()
    disk.evict_all()
    disk.store("both again")
    disk.write()
    disk.store("memory alone")
    assert drop(disk) == "space"
    assert disk.owner.disk_drops() == key("both again") + key("both")
    header = disk.owner.header()
    assert (header.pages, header.disk_pages) == (0, 0)


def test_a_page_being_written_to_disk_is_kept_until_it_is_there(disk: Place) -> None:
    disk.store("slow")
    pages = disk.owner.start_writes(1 << 20, 100)
    assert disk.owner.drop_idle(ANY_NS, PLENTY).result == IdleResult.MORE
    assert disk.match("slow") == (1, 1) and disk.sound()
    disk.owner.end_writes(pages, bytes([WriteResult.DONE]))
    while (found := disk.owner.drop_idle(ANY_NS, PLENTY).result) == IdleResult.NOTHING:
        pass
    assert found == IdleResult.DROPPED and disk.owner.disk_drops() == key("slow")


def test_a_page_being_written_to_disk_does_not_block_other_namespaces(disk: Place) -> None:
    disk.store("slow")
    disk.owner.start_writes(1 << 20, 100)
    name(disk, "other")
    disk.store("quick")
    assert drop(disk) == "other"


def test_a_new_daemon_knows_when_namespaces_were_used(two: Place) -> None:
    two.match("old")
    two.owner = two.memory.adopted(1)
    assert drop(two) == "other"
