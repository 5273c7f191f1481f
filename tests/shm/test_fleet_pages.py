"""The fleet as the daemon's Python code uses it: pages are granted to its worker, and engines see whether to ask it."""

from __future__ import annotations

from anonymous_segments import DAY_NS, attach
from index_with_disk import FRAME, Place, key, u32, u64
from pagetier.shm._core import DISK_DEVICES, ReserveOutcome, located_pages
from pagetier.shm.page_rows import LOCATED_PAGES, PAGES_TO_READ, LocatedPage, PageToRead


def fetch(place: Place, worker: int, names: str, sizes: bytes, frames: int = 8) -> list[PageToRead]:
    return fetch_pages(place, worker, located_pages(b"".join(map(key, names)), sizes, u32(*[0] * len(names))), frames)


def fetch_pages(place: Place, worker: int, pages: bytes, frames: int = 8) -> list[PageToRead]:
    rows = place.owner.fetch_located(u32(), DAY_NS, pages, u64(), worker, frames, u32(place.space))
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


def test_a_page_goes_into_the_namespace_of_its_row(disk: Place) -> None:
    worker, other = attach(disk.owner, 2), disk.owner.space(bytes(range(32)), "other", 16, 0, 0)
    asked = LOCATED_PAGES.pack([LocatedPage(key("a"), FRAME, 1), LocatedPage(key("b"), FRAME, 0)])
    rows = disk.owner.fetch_located(u32(), DAY_NS, asked, u64(), worker, 8, u32(disk.space, other))
    assert [page.space for page in PAGES_TO_READ.read(rows)] == [other, disk.space]


def test_a_page_of_no_namespace_of_the_message_counts_as_not_located(disk: Place) -> None:
    pages = [LocatedPage(key(name), FRAME, space) for name, space in (("a", 0), ("b", 1))]
    granted = fetch_pages(disk, attach(disk.owner, 2), LOCATED_PAGES.pack(pages))
    assert outcomes(granted) == [ReserveOutcome.GRANTED_TO_FLEET, ReserveOutcome.ABSENT]


def test_a_session_asks_the_fleet_while_its_breaker_is_closed(disk: Place) -> None:
    disk.owner.set_fleet_breaker(1)
    assert not disk.session.asks_fleet
    disk.owner.set_fleet_breaker(0)
    assert disk.session.asks_fleet
    disk.session.retire()
    assert not disk.session.asks_fleet
