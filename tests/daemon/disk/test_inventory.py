"""Tests that the inventory of a worker is loaded into the index as far as it has room, the oldest pages coldest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from anonymous_segments import Memory, attach
from numbered_pages import GEOMETRY, content_of, key_of, store
from pagetier.daemon.disk.inventory import Inventory
from pagetier.daemon.disk.pending_flushes import DeviceFlushes
from pagetier.daemon.workers.worker_process import check
from pagetier.shm._core import HISTORY_BYTES, KEY_BYTES, Owner, TierFlag, WriteRule
from pagetier.shm.page_rows import STORED_PAGES, StoredPage
from pagetier.shm.protocol import ProtocolError, Space
from pagetier.tiers.base import StoredPages
from pagetier.tiers.worker import ordered_pages
from pagetier.tiers.worker.ordered_pages import OrderedPages
from pagetier.tiers.worker_protocol import HasRead, HistoryPart, InventoryPart, Opened, Report, Wrote

SPACE, OTHER = Space(b"s" * KEY_BYTES, "one\x1b", 16), Space(b"o" * KEY_BYTES, "other", 32, 1, 512)


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory(GEOMETRY)
    yield made
    made.close()


@pytest.fixture
def owner(memory: Memory) -> Iterator[Owner]:
    made = memory.adopted()
    yield made
    assert made.check_integrity() == []


def batch_of(
    numbers: Sequence[int],
    stamps: Sequence[int] = (),
    spaces: Sequence[int] = (),
    table: tuple[Space, ...] = (SPACE, OTHER),
) -> StoredPages:
    pages = zip(numbers, stamps or numbers, spaces or [0] * len(numbers), strict=True)
    return StoredPages(
        STORED_PAGES.pack(
            StoredPage(key_of(number), bytes(HISTORY_BYTES), len(content_of(number)), stamp, space)
            for number, stamp, space in pages
        ),
        table,
    )


def parts_of(*batches: StoredPages) -> list[InventoryPart]:
    """Returns what a worker reports of these pages."""
    parts = [part for part in OrderedPages(batches).parts() if isinstance(part, InventoryPart)]
    for part in parts:
        check(part)
    return parts


@pytest.fixture
def flushes() -> Iterator[DeviceFlushes]:
    loop = asyncio.new_event_loop()
    yield DeviceFlushes(loop)
    loop.close()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes workers report three pages in each part."""
    monkeypatch.setattr(ordered_pages, "_PART", 3)


def part_with(size: int, *table: Space) -> InventoryPart:
    """Returns a part with one page of this size."""
    return InventoryPart(STORED_PAGES.pack([StoredPage(bytes(KEY_BYTES), bytes(HISTORY_BYTES), size, 0, 0)]), table)


def spaces_named(numbers: range) -> tuple[Space, ...]:
    return tuple(Space(bytes([number]) * KEY_BYTES, f"space {number}", 16) for number in numbers)


def on_disk(owner: Owner) -> dict[str, int]:
    """Returns the number of pages on disk of each namespace that has some."""
    return {space.name: space.disk_pages for space in owner.spaces() if space.disk_pages}


def load(owner: Owner, flushes: DeviceFlushes, *batches: StoredPages) -> Inventory:
    loaded = Inventory(owner, flushes)
    for part in parts_of(*batches):
        loaded.add(part)
    assert len(loaded) == sum(map(len, batches))
    assert not loaded.flushed
    return loaded


def dropped(owner: Owner) -> set[bytes]:
    drops = owner.disk_drops()
    return {drops[at : at + KEY_BYTES] for at in range(0, len(drops), KEY_BYTES)}


def test_pages_of_several_batches_and_namespaces(owner: Owner, flushes: DeviceFlushes) -> None:
    owner.disk_open(1000, WriteRule.THROUGH)
    load(owner, flushes)
    assert owner.header().disk_pages == 0, "the tier was empty"
    load(owner, flushes, batch_of([1, 2, 3], spaces=[0, 1, 0]), batch_of([4, 5], spaces=[0, 0], table=(OTHER,)))
    assert owner.header().disk_pages == 5
    assert on_disk(owner) == {"one?": 2, "other": 3}
    assert dropped(owner) == set()


@pytest.mark.usefixtures("small_parts")
def test_the_oldest_pages_are_evicted_first_in_whatever_order_they_are_listed(
    owner: Owner, flushes: DeviceFlushes
) -> None:
    numbers = range(20)
    frames = sum(-(-len(content_of(number)) // GEOMETRY.frame_bytes) for number in numbers)
    owner.disk_open(frames // 2, WriteRule.THROUGH)
    stamps = [(7 * number) % 20 for number in numbers]
    load(owner, flushes, batch_of(numbers, stamps))
    gone = dropped(owner)
    assert gone
    ages = {key_of(number): stamp for number, stamp in zip(numbers, stamps, strict=True)}
    assert max(ages[key] for key in gone) < min(age for key, age in ages.items() if key not in gone)


@pytest.mark.parametrize(("stamps", "newest"), [([3, 9, 5], 9), ([3, 2**64 - 1, 5], 5)], ids=["sound", "damaged"])
def test_the_newest_stamp_is_one_that_a_clock_can_have_shown(
    owner: Owner, flushes: DeviceFlushes, stamps: list[int], newest: int
) -> None:
    owner.disk_open(1000, WriteRule.THROUGH)
    assert load(owner, flushes).newest == 0
    assert load(owner, flushes, batch_of([1, 2, 3], stamps)).newest == newest


@pytest.mark.usefixtures("small_parts")
def test_a_full_index_keeps_the_warmest_pages(owner: Owner, flushes: DeviceFlushes) -> None:
    numbers = range(3 * GEOMETRY.entries)
    owner.disk_open(10_000, WriteRule.THROUGH)
    load(owner, flushes, batch_of(numbers))
    assert owner.header().disk_pages == GEOMETRY.entries
    assert dropped(owner) == set(map(key_of, numbers[: -GEOMETRY.entries]))


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("pages", [1, 3, 4, 20])
def test_the_newest_part_comes_first_and_each_part_says_how_many_pages_are_older(pages: int) -> None:
    numbers = np.random.default_rng(pages).permutation(pages).tolist()
    parts = parts_of(batch_of(numbers, [number + 1 for number in numbers]))
    assert [part.older for part in parts] == [max(pages - 3, 0), *range(0, pages - 3, 3)]
    for part in parts:
        stamps = [page.stamp for page in STORED_PAGES.read(part.pages)]
        assert stamps == list(range(part.older + 1, part.older + len(stamps) + 1))
    assert [bool(part.table) for part in parts] == [True] + [False] * (len(parts) - 1)


def test_a_part_that_is_larger_than_the_index_costs_one_of_the_newest_pages(
    owner: Owner, flushes: DeviceFlushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered_pages, "_PART", GEOMETRY.entries + 1)
    numbers = range(3 * GEOMETRY.entries)
    owner.disk_open(10_000, WriteRule.THROUGH)
    load(owner, flushes, batch_of(numbers))
    assert owner.header().disk_pages == GEOMETRY.entries
    assert dropped(owner).isdisjoint(map(key_of, numbers[1 - GEOMETRY.entries :]))


def test_pages_that_are_in_memory_too_are_in_both(memory: Memory, owner: Owner, flushes: DeviceFlushes) -> None:
    slot = attach(owner, 1)
    session = memory.session(slot)
    store(owner, session, [1, 2])
    owner.settle()
    owner.disk_open(1000, WriteRule.THROUGH)
    load(owner, flushes, batch_of([1, 2, 3]))
    header = owner.header()
    assert (header.pages, header.disk_pages) == (2, 3)
    assert owner.unwritten()[0] == 0
    session.retire()
    owner.reap(slot)


@pytest.mark.usefixtures("small_parts")
def test_each_part_is_found_as_soon_as_it_came(owner: Owner, flushes: DeviceFlushes) -> None:
    owner.disk_open(1000, WriteRule.THROUGH)
    loaded, found = Inventory(owner, flushes), []
    for part in parts_of(batch_of(range(10))):
        loaded.add(part)
        found.append(owner.header().disk_pages)
    assert found == [3, 6, 9, 10]


@pytest.mark.usefixtures("small_parts")
def test_a_namespace_that_is_flushed_between_two_parts_does_not_come_back(owner: Owner, flushes: DeviceFlushes) -> None:
    owner.disk_open(1000, WriteRule.THROUGH)
    loaded, (first, *others) = Inventory(owner, flushes), parts_of(batch_of(range(10), spaces=[0, 1] * 5))
    loaded.add(first)
    assert owner.flush(0, TierFlag.BOTH) == (1, 0), "the other namespace has the newest page"
    flushes.namespaces.keep([SPACE.digest])
    for part in others:
        loaded.add(part)
    assert on_disk(owner) == {"other": 5}
    assert dropped(owner) == {key_of(8)}
    assert bytes(loaded.flushed) == b"".join(map(key_of, range(0, 8, 2)))


@pytest.mark.usefixtures("small_parts")
def test_a_page_that_is_forgotten_between_two_parts_does_not_come_back(owner: Owner, flushes: DeviceFlushes) -> None:
    owner.disk_open(1000, WriteRule.THROUGH)
    loaded, (first, *others) = Inventory(owner, flushes), parts_of(batch_of(range(10)))
    loaded.add(first)
    flushes.pages.keep([key_of(4), key_of(99)])
    for part in others:
        loaded.add(part)
    assert owner.header().disk_pages == 9
    assert bytes(loaded.flushed) == key_of(4)


def test_pages_keep_their_namespace_in_a_full_table(owner: Owner, flushes: DeviceFlushes) -> None:
    """Regression: a record was given to the next namespace before the first page of its own was loaded."""
    owner.disk_open(1000, WriteRule.THROUGH)
    load(owner, flushes, batch_of(range(8), spaces=range(8), table=spaces_named(range(8))))
    assert on_disk(owner) == {f"space {number}": 1 for number in range(4, 8)}, "the last used ones have room"
    assert dropped(owner) == {key_of(number) for number in range(4)}


def test_namespaces_without_pages_on_disk_take_no_room(owner: Owner, flushes: DeviceFlushes) -> None:
    """Regression: each reset of an engine leaves a name on disk, and a thousand of them took the records of others."""
    owner.disk_open(1000, WriteRule.THROUGH)
    load(owner, flushes, batch_of([1, 2, 3], table=(SPACE, *spaces_named(range(8)))))
    assert [(space.name, space.disk_pages) for space in owner.spaces()] == [("one?", 3)]


def test_a_store_between_two_parts_takes_no_namespace_of_the_disk(
    owner: Owner, memory: Memory, flushes: DeviceFlushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered_pages, "_PART", 1)
    owner.disk_open(1000, WriteRule.THROUGH)
    loaded = Inventory(owner, flushes)
    first, *others = parts_of(batch_of(range(4), spaces=range(4), table=spaces_named(range(1, 5))))
    loaded.add(first)
    slot = attach(owner, 1)
    store(owner, memory.session(slot), [9])
    for part in others:
        loaded.add(part)
    owner.reap(slot)
    assert list(on_disk(owner).values()) == [1] * 3


@pytest.mark.usefixtures("small_parts")
def test_histories_follow_the_pages_and_begin_with_the_first_of_each_prompt() -> None:
    rows = [
        StoredPage(key_of(number), bytes(16) + depth.to_bytes(4, "little") + bytes([0, uses, 0, 0]), 1, number, 0)
        for number, depth, uses in [(1, 2, 1), (2, 0, 0), (3, 1, 7), (4, 0, 1), (5, 3, 1)]
    ]
    parts = list(OrderedPages([StoredPages(STORED_PAGES.pack(rows), (SPACE,))]).parts())
    assert [type(part) for part in parts] == [InventoryPart] * 2 + [HistoryPart] * 2
    reported = [page.key for part in parts if isinstance(part, HistoryPart) for page in STORED_PAGES.read(part.pages)]
    assert reported == [key_of(number) for number in (4, 3, 1, 5)], "the second page was never used"


def test_a_namespace_that_no_part_has_named_is_refused(owner: Owner, flushes: DeviceFlushes) -> None:
    owner.disk_open(1000, WriteRule.THROUGH)
    with pytest.raises(ProtocolError):
        Inventory(owner, flushes).add(part_with(1))


@pytest.mark.parametrize(
    "report",
    [
        Opened(-1, None),  # type: ignore[arg-type]
        Opened(1 << 50, None),  # type: ignore[arg-type]
        InventoryPart(part_with(1, SPACE).pages[1:], (SPACE,)),
        Opened(1, None, -1),  # type: ignore[arg-type]
        InventoryPart(part_with(1, SPACE).pages, (SPACE,), -1),
        InventoryPart(part_with(1, SPACE).pages, (SPACE,), 1 << 41),
        HistoryPart(part_with(1).pages[1:]),
        HistoryPart(part_with(0).pages),
        part_with(0, SPACE),
        part_with(2**64 - 1, SPACE),
        part_with(1, Space(b"short", "", 16)),
        part_with(1, Space(bytes(KEY_BYTES), "", -1)),
        Wrote(1, b"\xff", "", 0),
        HasRead(1, -1, b"", b"", ""),
        HasRead(1, 0, b"\2", b"", ""),
        HasRead(1, 0, b"\1", bytes(KEY_BYTES - 1), ""),
    ],
)
def test_an_invalid_report_is_rejected(report: Report) -> None:
    with pytest.raises(ProtocolError):
        check(report)
