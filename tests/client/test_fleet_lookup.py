"""The longest hit that memory, disk and fleet allow together, for groups of all kinds, against every possible hit."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from eventually import PATIENCE_S, eventually
from fleet_host import PATIENT, FleetHost
from pagetier.client import FullAttention, GroupMatch, Recurrent, SlidingWindow
from pagetier.client.adapters import Group, GroupKeys, Location
from pagetier.client.load_or_compute import LoadOrCompute
from pagetier.client.tier_speed import LoadTier
from pagetier.daemon.status.disk_report import Standing
from pagetier.shm import clock
from pagetier.shm.row_arrays import sizes_of
from running_daemon import RunningDaemon, namespace

_TOKENS = 256
_BYTES = 1000
_ARENA = "128MiB"
_CASES = 20


class Placed(msgspec.Struct, frozen=True):
    """The pages of one group, and which of them are on the second host and in the fleet."""

    asked: GroupKeys
    here: frozenset[int]
    fleet: frozenset[int]

    def needs(self, tokens: int) -> range:
        return self.asked.group.pages(tokens)


class Hosts(msgspec.Struct, frozen=True):
    """The first host shares pages, the second one reads them."""

    first: FleetHost
    second: FleetHost
    unwritten: list[int] = []

    def place(self, group: Group, name: str, here: Sequence[int], fleet: Sequence[int]) -> Placed:
        """Stores pages of a group; each of them contains its own number."""
        keys = namespace(group.page_tokens, lora=name).keys(range(_TOKENS))
        for host, pages in ((self.first, fleet), (self.second, here)):
            for page in pages:
                content = np.full((1, _BYTES), page, np.uint8)
                assert host.client.store(keys[page : page + 1], content).stored == 1
        self.unwritten.extend(fleet)
        return Placed(GroupKeys(group, keys), frozenset(here), frozenset(fleet))

    def located(self, placed: Sequence[Placed], limit: int | None = None) -> Location:
        self.first.wait_shared(len(self.unwritten))
        self.unwritten.clear()
        with self.second.client.find_groups([one.asked for one in placed], limit) as match:
            location = self.second.client.locate(match)
        location.wait(PATIENCE_S)
        assert location.ready
        return location

    def in_memory(self, placed: Placed) -> list[int]:
        """Returns the pages that the second host has."""
        session = self.second.client.session
        assert session is not None
        return [page for page, tiers in enumerate(session.locate(placed.asked.keys.data)) if tiers]

    def prefetched(self, location: Location) -> GroupMatch:
        """Returns the match after the longest hit was read."""
        client, hit = self.second.client, location.longest_hit()
        prefetch = client.prefetch(location.match if hit is None else hit, PATIENCE_S)
        assert prefetch.wait(PATIENCE_S) == prefetch.pages
        return client.find_groups(location.match.groups, location.match.asked)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    store: Path = tmp_path_factory.mktemp("store")
    with ExitStack() as stack:
        first = FleetHost(f"file://{store}", stack, *PATIENT, arena=_ARENA)
        yield Hosts(first, FleetHost(f"file://{store}", stack, "--set", "remote.write=never", *PATIENT, arena=_ARENA))


def longest(placed: Sequence[Placed]) -> int:
    """Returns the expected hit by trying every possible one."""
    grain = math.lcm(*(one.asked.group.page_tokens for one in placed))
    there = [one.here | one.fleet for one in placed]
    hits = range(0, _TOKENS + 1, grain)
    return max(p for p in hits if all(set(one.needs(p)) <= has for one, has in zip(placed, there, strict=True)))


def kinds_of(rng: random.Random) -> list[Group]:
    page = rng.choice((8, 16))
    windows = [SlidingWindow(rng.choice((8, 16)), rng.randrange(1, 80)) for _ in range(rng.randrange(2))]
    states = [Recurrent(page * rng.choice((1, 2))) for _ in range(rng.randrange(2))]
    full = [FullAttention(page)] if rng.random() < 0.8 or not windows + states else []
    return rng.sample([*full, *windows, *states], len(full) + len(windows) + len(states))


def placed_at_random(hosts: Hosts, rng: random.Random, name: str) -> list[Placed]:
    placed = []
    for at, kind in enumerate(kinds_of(rng)):
        pages, full = range(_TOKENS // kind.page_tokens), isinstance(kind, FullAttention)
        share, end = (0.97, rng.randrange(len(pages) + 1)) if full else (rng.random(), len(pages))
        fleet = [page for page in pages[:end] if rng.random() < share]
        here = [page for page in pages if page < rng.randrange(len(pages)) and rng.random() < 0.8]
        placed.append(hosts.place(kind, f"{name}-{at}", here, fleet))
    return placed


def test_the_hit_is_the_longest_one(hosts: Hosts) -> None:
    cases = [
        placed_at_random(hosts, random.Random(f"locate-groups-{case}"), f"random-{case}") for case in range(_CASES)
    ]
    gains = [check_longest(hosts, case, placed) for case, placed in enumerate(cases)]
    assert sum(gain > 0 for gain in gains) > _CASES / 3, gains


def check_longest(hosts: Hosts, case: int, placed: Sequence[Placed]) -> int:
    """Reads the longest hit and returns by how many tokens the fleet has made it longer."""
    location, expected = hosts.located(placed), longest(placed)
    hit, without = location.longest_hit(), location.match.available_tokens
    assert (hit.tokens if hit else without) == expected, f"case {case}: {placed}"
    if hit is not None:
        with hosts.prefetched(location) as match:
            assert match.tokens == expected, f"case {case}: {placed}"
            for one, pages in zip(placed, match.matches, strict=True):
                out = np.zeros((len(pages), _BYTES), np.uint8)
                assert hosts.second.client.load(pages, out, timeout=0.0) == len(pages)
                assert out[:, 0].tolist() == [*one.needs(expected)], f"case {case}: {placed}"
    return expected - without


def test_only_pages_that_the_hit_needs_are_read(hosts: Hosts) -> None:
    full = hosts.place(FullAttention(16), "exact-full", range(4), range(10))
    window = hosts.place(SlidingWindow(16, 33), "exact-window", [], range(16))
    state = hosts.place(Recurrent(16), "exact-state", [], [2, 7, 12])
    location = hosts.located([full, window, state])
    hit = location.longest_hit()
    assert hit is not None and hit.tokens == 8 * 16, "after the last snapshot within full attention"
    assert hit.fleet_bytes == (4 + 2 + 1) * _BYTES, "four of full attention, two of the window, one snapshot"
    with hosts.prefetched(location) as match:
        assert match.tokens == hit.tokens
    assert [hosts.in_memory(one) for one in (full, window, state)] == [[*range(8)], [6, 7], [7]]


def test_a_hit_that_takes_too_many_bytes_ends_earlier(hosts: Hosts) -> None:
    placed = [hosts.place(FullAttention(16), "bytes-full", [0], range(10))]
    placed.append(hosts.place(Recurrent(16), "bytes-state", [], [3, 8]))
    location = hosts.located(placed)
    tokens = {most: hit and hit.tokens for most in (9, 4, 3) if [hit := location.longest_hit(most * _BYTES)]}
    assert tokens == {9: 9 * 16, 4: 4 * 16, 3: None}


def test_no_hit_is_longer_than_the_limit(hosts: Hosts) -> None:
    placed = [hosts.place(FullAttention(16), "limit", [], range(10))]
    hit = hosts.located(placed, 100).longest_hit()
    assert hit is not None and hit.tokens == 96


@pytest.mark.parametrize("wrong", [2**48 + 1, 2**63, 2**64 - 1])
def test_a_size_that_no_page_has_counts_as_absent(hosts: Hosts, wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    placed = [hosts.place(FullAttention(16), f"wrong-size-{wrong}", [], range(6))]
    location = hosts.located(placed)

    def one_wrong(column: bytes) -> npt.NDArray[np.uint64]:
        sizes = sizes_of(column).copy()
        sizes[3] = wrong
        return sizes

    monkeypatch.setattr("pagetier.client.fleet_lookup.sizes_of", one_wrong)
    hit = location.longest_hit()
    assert hit is not None and (hit.tokens, hit.fleet_bytes) == (48, 3 * _BYTES)


def test_pages_that_came_since_the_match_count(hosts: Hosts) -> None:
    full, state = FullAttention(16), Recurrent(16)
    placed = [hosts.place(full, "since-full", [], range(6)), hosts.place(state, "since-state", [], [])]
    location = hosts.located(placed)
    assert location.longest_hit() is None, "no snapshot"
    hosts.place(state, "since-state", [4], [])
    hit = location.longest_hit()
    assert hit is not None and (hit.tokens, hit.fleet_bytes) == (80, 5 * _BYTES)


def test_nothing_is_asked_if_nothing_lacks(hosts: Hosts) -> None:
    pages = range(_TOKENS // 16)
    placed = [hosts.place(FullAttention(16), "complete", pages, pages)]
    before = asked(hosts)
    location = hosts.located(placed)
    assert location.ready and location.longest_hit() is None and asked(hosts) == before


def asked(hosts: Hosts) -> int:
    """Returns the number of questions for pages that the fleet has, and of those that were not asked."""
    report = hosts.second.fresh_report()
    return report.found + report.refused


def test_a_question_has_a_limited_number_of_pages(hosts: Hosts) -> None:
    keys = namespace(1, lora="long").keys(range(20_000))
    with hosts.second.client.find_groups([GroupKeys(FullAttention(1), keys)]) as match:
        assert "4096 pages" in repr(hosts.second.client.locate(match))


def test_pages_in_memory_on_disk_and_in_the_fleet_make_one_hit(hosts: Hosts, tmp_path: Path) -> None:
    group, disk = FullAttention(16), ("--disk-path", str(tmp_path / "disk"), "--disk-size", "64MiB")
    with ExitStack() as stack:
        store = hosts.first.report.url
        second = FleetHost(store, stack, "--set", "remote.write=never", *PATIENT, *disk, arena=_ARENA)
        assert eventually(lambda: second.daemon.snapshot().disk.standing is Standing.OPEN)
        three_tiers = Hosts(hosts.first, second)
        three_tiers.place(group, "tiers", range(4, 8), range(8, 12))
        written = second.daemon.pagetier("flush", "--to-disk")
        assert written.exit_code == 0, written.output
        assert second.daemon.pagetier("flush", "--all", "--tier", "memory", "--yes").exit_code == 0
        placed = three_tiers.place(group, "tiers", range(4), [])
        location = three_tiers.located([placed])
        assert (location.match.tokens, location.match.available_tokens) == (4 * 16, 8 * 16)
        hit = location.longest_hit()
        assert hit is not None and (hit.tokens, hit.fleet_bytes) == (12 * 16, 4 * _BYTES)
        with three_tiers.prefetched(location) as match:
            assert match.tokens == 12 * 16
            out = np.zeros((12, _BYTES), np.uint8)
            assert second.client.load(match.matches[0], out, timeout=0.0) == 12
            assert out[:, 0].tolist() == [*range(12)]


def test_pages_of_the_fleet_that_are_computed_faster_are_counted(hosts: Hosts) -> None:
    second, rule, now = hosts.second, LoadOrCompute(), clock.now()
    placed = hosts.place(FullAttention(16), "slower", [], range(4))
    hosts.located([placed])
    for _ in range(8):
        rule.computed(64, 0.0, PATIENCE_S)
        rule.ended(rule.sent(LoadTier.FLEET, 64, 1e6, now - 1e5), 1.0, now - 1e4)
    before = second.daemon.snapshot().lookups
    with second.client.match(placed.asked.keys) as match:
        assert second.client.load(match, np.zeros((4, _BYTES), np.uint8), timeout=PATIENCE_S, rule=rule) == 0
    lookups = second.daemon.snapshot().lookups
    assert lookups.remote_slower_tokens - before.remote_slower_tokens == 4 * 16
    assert lookups.missed_tokens - before.missed_tokens == _TOKENS and not lookups.disk_slower_tokens


def test_without_a_fleet_nothing_is_asked() -> None:
    with RunningDaemon() as daemon, daemon.client() as client:
        keys = namespace(16, lora="none").keys(range(_TOKENS))
        with client.find_groups([GroupKeys(FullAttention(16), keys)]) as match:
            location = client.locate(match)
        assert location.ready and location.longest_hit() is None and not location.rate
