"""The fleet as the daemon's Python code uses it: pages are granted to its worker, and engines see whether to ask it."""

from __future__ import annotations

from anonymous_segments import DAY_NS, attach
from index_with_disk import FRAME, Place, key, u32, u64
from pagetier.shm._core import DISK_DEVICES, ReserveOutcome
from pagetier.shm.page_rows import PAGES_TO_READ, PageToRead


def fetch(place: Place, worker: int, names: str, sizes: bytes, frames: int = 8) -> list[PageToRead]:
    keys, spaces = b"".join(map(key, names)), u32(*[place.space] * len(names))
    rows = place.owner.fetch(u32(), DAY_NS, keys, u64(), worker, frames, sizes, spaces)
    return list(PAGES_TO_READ.read(rows))


def outcomes(pages: list[PageToRead]) -> list[int]:
    return [page.outcome for page in pages]


def test_pages_of_the_fleet_are_granted_to_its_worker_and_found_when_it_has_published_them(disk: Place) -> None:
    worker = attach(disk.owner, 2)
    session = disk.memory.session(worker)
    disk.store("a")
    pages = fetch(disk, worker, "abx", u64(FRAME, FRAME, 0))
    assert outcomes(pages) == [ReserveOutcome.PRESENT, ReserveOutcome.GRANTED_TO_FLEET, ReserveOutcome.ABSENT]
    assert disk.match("a", "b") == (1, 1) and outcomes(disk.fetch("b")) == [ReserveOutcome.PENDING]
    assert pages[1] == PageToRead(
        key("b"), FRAME, pages[1].serial, pages[1].entry, disk.space, ReserveOutcome.GRANTED_TO_FLEET, DISK_DEVICES
    )
    assert disk.owner.spaces()[0].pages == 2
    assert session.publish(u32(pages[1].entry), u64(pages[1].serial), 0) == b"\1"
    assert disk.match("a", "b") == (2, 2) and disk.sound()


def test_pages_that_the_worker_could_not_fill_leave_with_it(disk: Place) -> None:
    worker = attach(disk.owner, 2)
    assert outcomes(fetch(disk, worker, "ab", u64(FRAME, 3 * FRAME), 2)) == [
        ReserveOutcome.GRANTED_TO_FLEET,
        ReserveOutcome.REFUSED_FULL,
    ]
    disk.owner.reap(worker)
    assert disk.match("a") == (0, 0) and disk.owner.free_frames == 8 and disk.sound()


def test_a_session_asks_the_fleet_while_its_breaker_is_closed(disk: Place) -> None:
    disk.owner.set_fleet_breaker(1)
    assert not disk.session.asks_fleet
    disk.owner.set_fleet_breaker(0)
    assert disk.session.asks_fleet
    disk.session.retire()
    assert not disk.session.asks_fleet
