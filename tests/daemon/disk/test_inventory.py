"""Tests that the inventory of a worker is loaded into the index as far as it has room, the oldest pages coldest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from anonymous_segments import Memory, attach
from numbered_pages import GEOMETRY, content_of, key_of, store
from pagetier.daemon.common import loop_clock
from pagetier.daemon.disk import inventory
from pagetier.daemon.disk.inventory import Inventory
from pagetier.daemon.workers.worker_process import check
from pagetier.shm._core import HISTORY_BYTES, KEY_BYTES, Owner, TierFlag, WriteRule
from pagetier.shm.page_rows import STORED_PAGES, StoredPage
from pagetier.shm.protocol import ProtocolError, Space
from pagetier.tiers.worker_protocol import HasRead, InventoryPart, Opened, Report, Wrote

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


def part_of(
    numbers: Sequence[int],
    stamps: Sequence[int] = (),
    spaces: Sequence[int] = (),
    table: tuple[Space, ...] = (SPACE, OTHER),
) -> InventoryPart:
    pages = zip(numbers, stamps or numbers, spaces or [0] * len(numbers), strict=True)
    return InventoryPart(
        STORED_PAGES.pack(
            StoredPage(key_of(number), bytes(HISTORY_BYTES), len(content_of(number)), stamp, space)
            for number, stamp, space in pages
        ),
        table,
    )


def part_with(size: int, *table: Space) -> InventoryPart:
    """Returns a part with one page of this size."""
    return InventoryPart(STORED_PAGES.pack([StoredPage(bytes(KEY_BYTES), bytes(HISTORY_BYTES), size, 0, 0)]), table)


def spaces_named(numbers: range) -> tuple[Space, ...]:
    return tuple(Space(bytes([number]) * KEY_BYTES, f"space {number}", 16) for number in numbers)


def on_disk(owner: Owner) -> dict[str, int]:
    """Returns the number of pages on disk of each namespace that has some."""
    return {space.name: space.disk_pages for space in owner.spaces() if space.disk_pages}


def load(owner: Owner, *batches: InventoryPart) -> None:
    collected = Inventory(owner)
    for batch in batches:
        check(batch)
        collected.add(batch)
    assert len(collected) == sum(STORED_PAGES.count(batch.pages) for batch in batches)
    assert asyncio.run(collected.load_into_index(lambda _: False)) == b""


def dropped(owner: Owner) -> set[bytes]:
    drops = owner.disk_drops()
    return {drops[at : at + KEY_BYTES] for at in range(0, len(drops), KEY_BYTES)}


def test_pages_of_several_batches_and_namespaces(owner: Owner) -> None:
    owner.disk_open(1000, WriteRule.THROUGH)
    load(owner)
    assert owner.header().disk_pages == 0, "the tier was empty"
    load(owner, part_of([1, 2, 3], spaces=[0, 1, 0]), part_of([4, 5], spaces=[1, 1]))
    assert owner.header().disk_pages == 5
    assert on_disk(owner) == {"one?": 2, "other": 3}
    assert dropped(owner) == set()


def test_the_oldest_pages_are_evicted_first_in_whatever_order_they_are_loaded(owner: Owner) -> None:
    numbers = range(20)
    frames = sum(-(-len(content_of(number)) // GEOMETRY.frame_bytes) for number in numbers)
    owner.disk_open(frames // 2, WriteRule.THROUGH)
    stamps = [(7 * number) % 20 for number in numbers]
    load(owner, part_of(numbers, stamps))
    gone = dropped(owner)
    assert gone
    ages = {key_of(number): stamp for number, stamp in zip(numbers, stamps, strict=True)}
    assert max(ages[key] for key in gone) < min(age for key, age in ages.items() if key not in gone)


@pytest.mark.parametrize(("stamps", "newest"), [([3, 9, 5], 9), ([3, 2**64 - 1, 5], 5)], ids=["sound", "damaged"])
def test_the_newest_stamp_is_one_that_a_clock_can_have_shown(owner: Owner, stamps: list[int], newest: int) -> None:
    collected = Inventory(owner)
    assert collected.newest == 0
    collected.add(part_of([1, 2, 3], stamps))
    assert collected.newest == newest


def test_a_full_index_keeps_the_warmest_pages(owner: Owner) -> None:
    numbers = range(3 * GEOMETRY.entries)
    owner.disk_open(10_000, WriteRule.THROUGH)
    load(owner, part_of(numbers))
    assert owner.header().disk_pages == GEOMETRY.entries
    assert dropped(owner) == set(map(key_of, numbers[: -GEOMETRY.entries]))


def test_pages_that_are_in_memory_too_are_in_both(memory: Memory, owner: Owner) -> None:
    slot = attach(owner, 1)
    session = memory.session(slot)
    store(owner, session, [1, 2])
    owner.settle()
    owner.disk_open(1000, WriteRule.THROUGH)
    load(owner, part_of([1, 2, 3]))
    header = owner.header()
    assert (header.pages, header.disk_pages) == (2, 3)
    assert owner.unwritten()[0] == 0
    session.retire()
    owner.reap(slot)


async def test_a_large_inventory_is_loaded_in_steps(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "_AT_ONCE", 3)
    owner.disk_open(1000, WriteRule.THROUGH)
    collected = Inventory(owner)
    collected.add(part_of(range(10)))
    turns = 0
    telling = asyncio.ensure_future(collected.load_into_index(lambda _: False))
    while not telling.done():
        turns += 1
        await loop_clock.give_way()
    assert turns >= 4
    assert owner.header().disk_pages == 10


async def test_a_namespace_flushed_during_loading_is_not_loaded_further(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "_AT_ONCE", 4)
    owner.disk_open(1000, WriteRule.THROUGH)
    collected = Inventory(owner)
    collected.add(part_of(range(10), spaces=[0, 1] * 5))
    flushed: set[bytes] = set()
    telling = asyncio.ensure_future(collected.load_into_index(flushed.__contains__))
    while not owner.header().disk_pages:
        await loop_clock.give_way()
    flushed.add(OTHER.digest)
    assert owner.flush(1, TierFlag.BOTH) == (2, 0)
    drops = await telling
    assert {space.name: space.disk_pages for space in owner.spaces()} == {"one?": 5, "other": 0}
    assert drops == b"".join(map(key_of, range(1, 10, 2)))


def test_pages_keep_their_namespace_in_a_full_table(owner: Owner) -> None:
    """Regression: a record was given to the next namespace before the first page of its own was loaded."""
    owner.disk_open(1000, WriteRule.THROUGH)
    load(owner, part_of(range(8), spaces=range(8), table=spaces_named(range(8))))
    assert on_disk(owner) == {f"space {number}": 1 for number in range(4, 8)}, "the last used ones have room"
    assert dropped(owner) == {key_of(number) for number in range(4)}


def test_namespaces_without_pages_on_disk_take_no_room(owner: Owner) -> None:
    """Regression: each reset of an engine leaves a name on disk, and a thousand of them took the records of others."""
    owner.disk_open(1000, WriteRule.THROUGH)
    load(owner, part_of([1, 2, 3], table=(SPACE, *spaces_named(range(8)))))
    assert [(space.name, space.disk_pages) for space in owner.spaces()] == [("one?", 3)]


async def test_a_store_between_two_steps_takes_no_namespace_of_the_disk(
    owner: Owner, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "_AT_ONCE", 1)
    owner.disk_open(1000, WriteRule.THROUGH)
    collected = Inventory(owner)
    collected.add(part_of(range(4), spaces=range(4), table=spaces_named(range(1, 5))))
    telling = asyncio.ensure_future(collected.load_into_index(lambda _: False))
    await loop_clock.give_way()
    slot = attach(owner, 1)
    store(owner, memory.session(slot), [9])
    await telling
    owner.reap(slot)
    assert list(on_disk(owner).values()) == [1] * 3


@pytest.mark.parametrize(
    "report",
    [
        Opened(-1, None),  # type: ignore[arg-type]
        Opened(1 << 50, None),  # type: ignore[arg-type]
        InventoryPart(part_with(1, SPACE).pages[1:], (SPACE,)),
        part_with(1),
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
