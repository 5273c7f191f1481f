"""Tests the table of announced pages against the truth, with events that are lost, late, doubled or needless."""

from __future__ import annotations

from array import array

from pagetier.client.engines.events import table
from pagetier.client.engines.events.table import Change, EventTable
from pagetier.client.engines.vllm.events import KnownBlock, KnownPage
from pagetier.shm._core import KEY_BYTES, TierFlag
from seeded_random import chance

MEMORY, DISK = TierFlag.MEMORY, TierFlag.DISK


class Host:
    """Knows where pages are, and what a router believes after the changes that it received."""

    def __init__(self) -> None:
        self.tiers: dict[bytes, int] = {}
        self.believed: dict[int, int] = {}

    def locate(self, keys: bytes, /) -> bytes:
        return bytes(self.tiers.get(keys[at : at + KEY_BYTES], 0) for at in range(0, len(keys), KEY_BYTES))

    def hear(self, changes: list[Change[KnownPage]]) -> None:
        for change in changes:
            before = self.believed.get(change.page.at, 0)
            assert not before & change.came and before & change.left == change.left, "the router knows that"
            self.believed[change.page.at] = (before | change.came) & ~change.left


def key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "little")


def page(number: int) -> KnownPage:
    return KnownPage(0, number, (KnownBlock(key(number), None, array("I", [number]), None, None),))


def test_routers_believe_the_truth_after_each_sweep() -> None:
    numbers = chance()
    host, pages = Host(), EventTable[KnownPage](40)
    for _ in range(2000):
        number = int(numbers.integers(1, 60))
        match int(numbers.integers(6)):
            case 0:
                pages.learn(key(number), page(number))
            case 1:
                host.tiers[key(number)] = int(numbers.integers(4))
            case 2:
                host.tiers[key(number)] = int(numbers.integers(4))
                pages.touch(key(number) * int(numbers.integers(1, 3)))
            case 3:
                pages.sweep()
            case 4 if numbers.integers(20) == 0:
                pages.announce_again()
                host.believed.clear()
            case _:
                host.hear(pages.update(host, 0))
        assert len(pages) <= 40
    pages.sweep()
    host.hear(pages.update(host, 0))
    assert not pages.waits
    for number, believed in host.believed.items():
        known = key(number) in pages._rows  # a page that had to make room is believed to be nowhere
        assert believed == (host.tiers.get(key(number), 0) if known else 0)
    host.hear(pages.clear())
    assert not any(host.believed.values()) and len(pages) == 0


def test_a_full_table_keeps_what_it_has_announced() -> None:
    host, pages = Host(), EventTable[KnownPage](3)
    host.tiers = {key(number): MEMORY for number in range(1, 7)}
    for number in range(1, 5):
        pages.learn(key(number), page(number))
        host.hear(pages.update(host, 0))
    assert host.believed == {1: MEMORY, 2: MEMORY, 3: MEMORY}
    host.tiers[key(2)] = 0
    pages.touch(key(2))
    host.hear(pages.update(host, 0))
    pages.learn(key(5), page(5))
    host.hear(pages.update(host, 0))
    assert host.believed == {1: MEMORY, 2: 0, 3: MEMORY, 5: MEMORY}


def test_pages_stay_on_a_disk_that_is_being_opened() -> None:
    host, pages = Host(), EventTable[KnownPage](10)
    host.tiers = {key(1): MEMORY | DISK, key(2): DISK}
    for number in (1, 2):
        pages.learn(key(number), page(number))
    host.hear(pages.update(host, 0))
    host.tiers = {key(1): MEMORY}
    pages.sweep()
    host.hear(pages.update(host, DISK))
    assert host.believed == {1: MEMORY | DISK, 2: DISK}
    pages.sweep()
    host.hear(pages.update(host, 0))
    assert host.believed == {1: MEMORY, 2: 0}


def test_a_large_sweep_takes_several_turns_and_heads_come_first() -> None:
    count = table._LOCATED_AT_ONCE + 10
    host, pages = Host(), EventTable[KnownPage](count)
    for number in reversed(range(count)):
        pages.learn(key(number), page(number))
    assert pages.update(host, 0) == []
    host.tiers = {key(number): MEMORY for number in range(count)}
    pages.sweep()
    first = pages.update(host, 0)
    assert len(first) == table._LOCATED_AT_ONCE and pages.waits
    assert [change.page.at for change in first] == sorted(change.page.at for change in first)
    assert len(pages.update(host, 0)) == 10 and not pages.waits


def test_a_page_is_where_all_of_its_shares_are() -> None:
    """Ranks that divide layers or tokens store shares by themselves, and an engine needs them all."""
    numbers, shares = chance(), 3
    host, pages = Host(), EventTable[KnownPage](20, shares)
    keys = {number: [key(100 * number + share) for share in range(shares)] for number in range(1, 30)}
    for _ in range(3000):
        number, one = int(numbers.integers(1, 30)), int(numbers.integers(shares))
        match int(numbers.integers(5)):
            case 0:
                pages.learn(b"".join(keys[number]), page(number))
            case 1 | 2:
                host.tiers[keys[number][one]] = int(numbers.choice([0, MEMORY, DISK, MEMORY | DISK, MEMORY | DISK]))
                pages.touch(keys[number][one])
            case 3 if numbers.integers(10) == 0:
                pages.sweep()
            case _:
                host.hear(pages.update(host, 0))
    host.hear(pages.update(host, 0))
    for number, believed in host.believed.items():
        known = [share in pages._rows for share in keys[number]]
        assert all(known) or not any(known)
        tiers = [host.tiers.get(share, 0) for share in keys[number]]
        assert believed == (tiers[0] & tiers[1] & tiers[2] if all(known) else 0)
    assert any(host.believed.values()) and len(pages) == 20
    assert len(pages._rows) == 20 * shares
