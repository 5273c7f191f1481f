"""A request is one lookup, and each of its tokens is counted once: from memory, from disk, or missed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest

from disk_daemon import DiskDaemon, write_through
from eventually import PATIENCE_S, eventually
from hybrid_engine import TOKENS as PROMPT_TOKENS
from hybrid_engine import HybridEngine, tables
from keyed_pages import TOKENS, prompt, store
from lookup_counts import Counted, counted
from pagetier.client import CacheGroup, Client, FullAttention, Keys
from pagetier.client.adapters import find
from pagetier.client.load_or_compute import LoadMode, LoadOrCompute, ProcessRule
from pagetier.client.tier_speed import LoadTier
from pagetier.shm import clock
from replay_command import BLOCK, chat, replay_json, write_trace
from running_daemon import RunningDaemon

PAGE = 60_000
PAGES = 10


@contextmanager
def one_lookup(daemon: DiskDaemon, memory: int = 0, disk: int = 0, missed: int = 0) -> Iterator[None]:
    """Asserts that the block is counted as one lookup with these numbers of pages."""
    before = counted(daemon)
    yield
    assert counted(daemon).since(before) == Counted(1, memory * TOKENS, disk * TOKENS, missed * TOKENS)


def room(pages: int = PAGES) -> np.ndarray:
    return np.zeros((pages, PAGE), np.uint8)


@pytest.fixture(scope="module")
def running() -> Iterator[DiskDaemon]:
    with write_through() as running:
        yield running


@pytest.fixture
def daemon(running: DiskDaemon) -> DiskDaemon:
    """Returns the module's daemon without pages."""
    running.drop_all_pages()
    return running


@pytest.fixture
def on_disk(daemon: DiskDaemon, client: Client) -> Keys:
    """Returns the keys of ten pages that are on disk only."""
    keys = prompt(0, PAGES)
    assert store(client, keys, PAGE, timeout=PATIENCE_S).stored == PAGES
    daemon.push_out(client, keys)
    return keys


def test_what_is_found_with_find_is_not_counted(daemon: DiskDaemon, client: Client, on_disk: Keys) -> None:
    before = counted(daemon)
    with find(client.session, on_disk) as match:
        assert len(match) == 0 and match.available_pages == PAGES
        assert client.load(match, room(), timeout=PATIENCE_S) == PAGES
    with find(client.session, on_disk) as match, match.again() as longer:
        assert len(match) == len(longer) == PAGES and match.keys is on_disk
        assert client.load(match, room(), timeout=0) == PAGES
    with find(client.session, prompt(1, PAGES)) as match:
        assert len(match) == match.available_pages == 0 and match.asked == PAGES
    assert counted(daemon) == before
    with pytest.raises(TypeError, match="find"):
        find(client.session, b"keys")  # type: ignore[arg-type]


def test_a_page_from_disk_is_counted_once(daemon: DiskDaemon, client: Client, on_disk: Keys) -> None:
    with one_lookup(daemon, disk=PAGES), client.match(on_disk) as match:
        assert client.load(match, room()) == PAGES
        assert client.load(match, room()) == PAGES, "the second load of the same request finds them in memory"
    with one_lookup(daemon, memory=PAGES), client.match(on_disk) as match:
        assert client.load(match, room()) == PAGES


def test_tokens_are_counted_where_they_came_from(daemon: DiskDaemon, client: Client, on_disk: Keys) -> None:
    with client.match(on_disk[:4]) as head:
        assert client.load(head, room(4)) == 4
    with one_lookup(daemon, 4, 4, 5), client.match(prompt(0, PAGES + 3)) as match:
        assert (len(match), match.available_pages) == (4, PAGES)
        assert client.load(match, room(PAGES - 2)) == PAGES - 2, "the buffer has no room for two of the pages"


def test_a_page_in_memory_after_one_on_disk_counts_as_memory(daemon: DiskDaemon, client: Client, on_disk: Keys) -> None:
    assert client.prefetch(on_disk[4:6]).wait(PATIENCE_S) == 2
    with one_lookup(daemon, 2, PAGES - 2), client.match(on_disk) as match:
        assert (len(match), match.available_pages, match.from_disk) == (0, PAGES, 0)
        assert client.load(match, room()) == PAGES
        assert match.from_disk == PAGES - 2


def test_a_page_that_does_not_come_in_time_is_missed(daemon: DiskDaemon, client: Client, on_disk: Keys) -> None:
    before = counted(daemon)
    with daemon.stopped_worker(), client.match(on_disk) as match:
        assert client.load(match, room(), timeout=0.2) == 0
        assert counted(daemon).since(before) == Counted(1, 0, 0, 0), "another load may still succeed"
    assert counted(daemon).since(before) == Counted(1, 0, 0, PAGES * TOKENS)
    match.release()
    del match
    assert counted(daemon).since(before) == Counted(1, 0, 0, PAGES * TOKENS)


def test_a_second_try_that_succeeds_is_a_hit(daemon: DiskDaemon, client: Client, on_disk: Keys) -> None:
    with one_lookup(daemon, disk=PAGES), client.match(on_disk) as match:
        with daemon.stopped_worker():
            assert client.load(match, room(), timeout=0.2) == 0
        assert eventually(lambda: client.load(match, room()) == PAGES)


def test_pages_on_disk_that_are_not_loaded_count_as_missed(daemon: DiskDaemon, client: Client, on_disk: Keys) -> None:
    with one_lookup(daemon, missed=PAGES):
        client.match(on_disk)


def slow_disk() -> LoadOrCompute:
    """Returns a rule that has measured that the disk is far slower than computing, and sends no probe."""
    rule, later = LoadOrCompute(), clock.now() + 3600
    for pages in range(1, PAGES + 1):
        rule.computed(TOKENS, 0.0, TOKENS * 1e-6)
        rule.ended(rule.sent(LoadTier.DISK, pages * TOKENS, PATIENCE_S, later), 1.0, later + 1.0)
    return rule


@contextmanager
def computed(daemon: DiskDaemon, pages: int) -> Iterator[None]:
    """Asserts that so many pages on disk are counted as computed because loading is slower."""
    before = daemon.snapshot().lookups.disk_slower_tokens
    yield
    assert daemon.snapshot().lookups.disk_slower_tokens - before == pages * TOKENS


@pytest.mark.parametrize("pages", [PAGES, 4])
def test_pages_that_are_computed_faster_are_missed_and_counted_once(
    daemon: DiskDaemon, client: Client, on_disk: Keys, pages: int
) -> None:
    """A load that has room for 4 pages computes no more than those."""
    out = [*room(pages)]
    with computed(daemon, pages), one_lookup(daemon, missed=PAGES), client.match(on_disk) as match:
        for _ in range(2):
            assert client.load(match, out, rule=slow_disk()) == 0
        with match.again() as longer:
            assert client.load(longer, out, rule=slow_disk()) == 0


def test_a_registered_cache_counts_what_it_computes(
    daemon: DiskDaemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = np.zeros((1, PAGES, 2, TOKENS, 4, 8), np.int16)
    cache = client.register(list(tensors), model="slow", page_tokens=TOKENS, layout="flashinfer")
    tokens, table = list(range(PAGES * TOKENS)), np.arange(PAGES)
    assert cache.store(tokens, table).stored == PAGES
    daemon.push_out(client, cache.keys(tokens))
    monkeypatch.setattr(ProcessRule, "rule", slow_disk())
    with computed(daemon, PAGES), one_lookup(daemon, missed=PAGES), cache.match(tokens) as match:
        assert cache.load(match, table) == 0


def test_a_hybrid_model_counts_what_it_computes_once(
    daemon: DiskDaemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = HybridEngine(client)
    engine.groups.store(engine.prompt, tables(0, 3))
    daemon.push_out(client, engine.groups.keys(engine.prompt)[0].keys)
    monkeypatch.setattr(ProcessRule, "rule", slow_disk())
    pages = PROMPT_TOKENS // TOKENS
    with computed(daemon, pages), one_lookup(daemon, missed=pages), engine.groups.match(engine.prompt) as hit:
        assert [engine.groups.load(hit, tables(24, 3)) for _ in range(2)] == [0, 0]
    with computed(daemon, 0), client.find_groups(engine.groups.keys(engine.prompt)) as hit:
        assert engine.groups.load(hit, tables(24, 3)) == 0


def test_groups_count_each_page_from_disk_once(
    daemon: DiskDaemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten pages are slower to load, and four of them are loaded in the end, two of those twice."""
    tensors, kind = np.zeros((1, PAGES, 2, TOKENS, 4, 8), np.int16), FullAttention(TOKENS)
    caches = [CacheGroup(kv_caches=list(tensors), layout="flashinfer", kind=kind)]
    groups = client.register(groups=caches, model="in the end")
    tokens, table = list(range(PAGES * TOKENS)), np.arange(PAGES)
    assert [stored.stored for stored in groups.store(tokens, [table])] == [PAGES]
    daemon.push_out(client, groups.keys(tokens)[0].keys)
    with computed(daemon, 6), one_lookup(daemon, disk=4, missed=6), groups.match(tokens) as hit:
        monkeypatch.setattr(ProcessRule, "rule", slow_disk())
        assert groups.load(hit, [table]) == 0
        monkeypatch.setattr(ProcessRule, "rule", LoadOrCompute())
        for pages in (2, 2, 4):
            assert groups.load(hit, [table[:pages]], timeout=PATIENCE_S) == pages * TOKENS


def test_pages_that_are_loaded_in_the_end_were_not_computed(daemon: DiskDaemon, client: Client, on_disk: Keys) -> None:
    with computed(daemon, 0), one_lookup(daemon, disk=PAGES), client.match(on_disk) as match:
        assert client.load(match, room(), rule=slow_disk()) == 0
        assert client.load(match, room()) == PAGES


def test_pages_that_a_setting_leaves_out_are_missed_only(daemon: DiskDaemon, client: Client, on_disk: Keys) -> None:
    never = LoadOrCompute({LoadTier.DISK: LoadMode.NEVER})
    with computed(daemon, 0), one_lookup(daemon, missed=PAGES), client.match(on_disk) as match:
        assert client.load(match, room(), rule=never) == 0


def test_what_is_found_with_find_is_not_counted_as_computed(daemon: DiskDaemon, client: Client, on_disk: Keys) -> None:
    with computed(daemon, 0), find(client.session, on_disk) as match:
        assert client.load(match, room(), rule=slow_disk()) == 0


def test_a_match_after_a_prefetch_is_the_same_lookup(daemon: DiskDaemon, client: Client, on_disk: Keys) -> None:
    before = counted(daemon)
    with one_lookup(daemon, disk=PAGES), client.match(on_disk) as match:
        assert client.prefetch(on_disk[:6]).wait(PATIENCE_S) == 6
        with match.again() as longer:
            assert (len(longer), longer.available_pages) == (6, PAGES)
            assert counted(daemon).since(before) == Counted(1, 0, 6 * TOKENS, 0)
            assert client.load(longer, room()) == PAGES
            with longer.again() as whole:
                assert len(whole) == PAGES


def test_a_rematch_of_a_released_match_counts_nothing_more(daemon: DiskDaemon, client: Client, on_disk: Keys) -> None:
    with one_lookup(daemon, missed=PAGES):
        match = client.match(on_disk)
        match.release()
        with match.again() as longer:
            assert client.load(longer, room()) == PAGES


@pytest.mark.parametrize("clients", [1, 4])
@pytest.mark.parametrize("disk", [False, True])
def test_the_daemon_counts_what_a_replay_counts(daemon: DiskDaemon, tmp_path: Path, disk: bool, clients: int) -> None:
    trace, _ = write_trace(tmp_path / "chat.jsonl.gz", chat(300, seed=6))
    with nullcontext(daemon) if disk else RunningDaemon("1MiB", "64KiB") as used:
        before = counted(used)
        report = replay_json(trace, "--socket", used.socket, "--clients", clients, "--pace", 150)
        asked = report["pages_asked"] * BLOCK
        memory, from_disk = report["hit_tokens_memory"], report["hit_tokens_disk"]
        assert report["wrong_pages"] == 0 and memory > 0 and (from_disk > 0) is disk
        lookups = sum(bool(chain) for chain in chat(300, seed=6))
        expected = Counted(lookups, memory, from_disk, asked - memory - from_disk)
        assert eventually(lambda: counted(used).since(before) == expected), (counted(used), expected)
