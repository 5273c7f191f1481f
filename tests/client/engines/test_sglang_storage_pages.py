"""The pages of SGLang's storage backend: a load reads what is on disk, from each pool."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest
import torch

from disk_daemon import DiskDaemon
from eventually import PATIENCE_S, eventually
from fleet_host import PATIENT, FleetHost
from leaving_out import NEW_PAGES, small_daemon, until_left_out, use_all_that_return
from pagetier.client import Client
from pagetier.client.engines.fleet_reads import FleetLimits
from pagetier.client.engines.sglang.engine.settings import read_settings, read_storage_settings
from pagetier.client.engines.sglang.linker.offloads import Offload
from pagetier.client.engines.sglang.pools.device_pools import FULL, WINDOW
from pagetier.client.engines.sglang.pools.engine_groups import EngineGroup
from pagetier.client.engines.sglang.storage.pages import StoragePages
from pagetier.client.load_or_compute import load_modes
from pagetier.shm import clock
from virtual_clock import VirtualClock, in_main_thread, standing_clock, virtual_clock

__all__ = ["standing_clock", "virtual_clock"]

LAYERS, BLOCKS, TOKENS, PAGES = 2, 16, 16, 4
HASHES = [sha256(b"%d" % page).hexdigest() for page in range(PAGES)]
SLOTS = torch.arange(PAGES * TOKENS)


@pytest.fixture(scope="module")
def of_module() -> Iterator[DiskDaemon]:
    with DiskDaemon() as daemon:
        yield daemon


@pytest.fixture
def daemon(of_module: DiskDaemon) -> Iterator[DiskDaemon]:
    """Yields the module's daemon, which has no pages and no engines."""
    yield of_module
    assert eventually(lambda: [slot.pid for slot in of_module.slots()] == [of_module.worker()])
    of_module.drop_all_pages()


def pages_of(client: Client, tensors: npt.NDArray[np.uint16], *pools: str, load: str = "measured") -> StoragePages:
    """Returns the pages of pools with these tensors, by default that with full attention."""
    planes, groups = [list(part) for part in tensors], {}
    for pool in pools or (FULL,):
        cache = client.register(planes, layout="separate_blocks", model=f"test {pool}", page_tokens=TOKENS)
        groups[pool] = EngineGroup(pool, cache.group, {}, TOKENS)
    return StoragePages(client, lambda: groups, FleetLimits(10.0), load_modes(load))


def tokens_by_tier(daemon: DiskDaemon) -> tuple[int, int, int, int]:
    """Returns the tokens that engines have found in memory, on disk, in the fleet and nowhere."""
    counts = [slot.counts for slot in daemon.slots()]
    memory, disk, remote, missed = (
        sum(getattr(one, f"{tier}_tokens") for one in counts) for tier in ("memory", "disk", "remote", "missed")
    )
    return memory, disk, remote, missed


def pins(daemon: DiskDaemon) -> int:
    """Returns the number of pages that are pinned."""
    return sum(slot.pins for slot in daemon.slots())


def test_a_question_counts_once_in_the_tier_that_has_the_pages(daemon: DiskDaemon) -> None:
    """SGLang asks before it loads; what it loads counts no second time."""
    tensors, tokens = np.ones((2, LAYERS, BLOCKS, TOKENS, 2, 8), np.uint16), PAGES * TOKENS
    unknown = [sha256(b"unknown %d" % page).hexdigest() for page in range(PAGES)]
    with daemon.client(timeout=PATIENCE_S) as client:
        pages = pages_of(client, tensors)
        assert pages.count(HASHES, None) == 0
        assert tokens_by_tier(daemon) == (0, 0, 0, tokens)
        assert all(pages.store(FULL, HASHES, SLOTS, None))
        assert pages.count(HASHES[:2] + unknown, None) == 2
        assert pages.load(FULL, HASHES[:2], SLOTS[: 2 * TOKENS], None) == 2
        assert tokens_by_tier(daemon) == (tokens // 2, 0, 0, 2 * tokens)
        assert not daemon.save().trouble
        daemon.flush("memory")
        assert pages.count(HASHES, None) == PAGES and pages.load(FULL, HASHES, SLOTS, None) == PAGES
        assert tokens_by_tier(daemon) == (tokens // 2, tokens, 0, 2 * tokens)
        assert pages.restorable(HASHES, (), None).lengths == tuple(range(1, PAGES + 1))
        assert tokens_by_tier(daemon) == (tokens // 2 + tokens, tokens, 0, 2 * tokens)


def test_pages_that_are_computed_faster_are_not_promised_and_counted(daemon: DiskDaemon) -> None:
    tensors, tokens = np.ones((2, LAYERS, BLOCKS, TOKENS, 2, 8), np.uint16), PAGES * TOKENS
    computes = SimpleNamespace(
        is_extend_without_speculative=lambda: True, is_split_prefill=lambda: False, is_idle=lambda: False
    )
    with daemon.client(timeout=PATIENCE_S) as client:
        pages = pages_of(client, tensors)
        assert all(pages.store(FULL, HASHES, SLOTS, None))
        assert not daemon.save().trouble
        daemon.flush("memory")
        assert pages.count(HASHES, None) == PAGES and pages.load(FULL, HASHES, SLOTS, None) == PAGES
        daemon.flush("memory")
        lengths = {"prefix_lens": [0], "extend_lens": [10**9]}
        pages.batches.ended(SimpleNamespace(forward_mode=computes, launch_ts=clock.now(), **lengths))
        assert pages.count(HASHES, None) == 0
        assert pages.restorable(HASHES, (), None).lengths == ()
        assert tokens_by_tier(daemon) == (0, tokens, 0, 2 * tokens)
        assert sum(slot.counts.disk_slower_tokens for slot in daemon.slots()) == 2 * tokens


def test_nothing_is_loaded_from_a_disk_that_a_setting_excludes(daemon: DiskDaemon) -> None:
    tensors, tokens = np.ones((2, LAYERS, BLOCKS, TOKENS, 2, 8), np.uint16), PAGES * TOKENS
    with daemon.client(timeout=PATIENCE_S) as client:
        pages = pages_of(client, tensors, load="disk=never")
        assert all(pages.store(FULL, HASHES, SLOTS, None))
        assert pages.count(HASHES, None) == PAGES
        assert not daemon.save().trouble
        daemon.flush("memory")
        assert pages.count(HASHES, None) == 0
        assert tokens_by_tier(daemon) == (tokens, 0, 0, tokens)
        assert not sum(slot.counts.disk_slower_tokens for slot in daemon.slots()), "nothing was measured"


@pytest.mark.parametrize("read", [read_settings, lambda given: read_storage_settings({"interface_v1": 1} | given)])
def test_a_setting_says_when_disk_and_fleet_are_loaded_from(read: Callable[[dict[str, str]], Any]) -> None:
    assert [read({"load": load}).load for load in ("never", "disk=always")] == ["never", "disk=always"]
    for wrong, says in (("sometimes", "load must be one of"), ("memory=never", "memory is always loaded")):
        with pytest.raises(ValueError, match=says):
            read({"load": wrong})


def test_a_question_of_several_pools_matches_once(daemon: DiskDaemon) -> None:
    """The answer says how far each pool goes. A prefix needs the last two pages of its window only."""
    tensors = np.ones((2, LAYERS, BLOCKS, TOKENS, 2, 8), np.uint16)
    window = SimpleNamespace(name=SimpleNamespace(value=WINDOW), keys=HASHES[:2], hit_policy="trailing_pages")
    with daemon.client(timeout=PATIENCE_S) as client:
        pages = pages_of(client, tensors, FULL, WINDOW)
        assert all(pages.store(FULL, HASHES, SLOTS, None))
        assert all(pages.store(WINDOW, HASHES[:3], SLOTS[: 3 * TOKENS], None))
        for tier in ("memory", "disk"):
            with patch.object(client, "find_groups", wraps=client.find_groups) as find:
                found = pages.restorable(HASHES, [window], None)
            assert find.call_count == 1
            assert found.lengths == (1, 2, 3) and found.by_pool == {FULL: PAGES, WINDOW: 3}
            assert tier == "disk" or not daemon.save().trouble
            daemon.flush("memory")
        assert tokens_by_tier(daemon) == (3 * TOKENS, 3 * TOKENS, 0, 2 * TOKENS)


@pytest.mark.parametrize("pool", ["kv", "mamba"])
def test_a_load_goes_on_to_the_fleet_also_if_nothing_was_asked_before(tmp_path: Path, pool: str) -> None:
    tensors = np.random.default_rng(1).integers(1, 1 << 16, (2, LAYERS, BLOCKS, TOKENS, 2, 8), np.uint16)
    content = tensors.copy()
    url = f"file://{tmp_path}"
    with ExitStack() as stack:
        here, there = (FleetHost(url, stack, *PATIENT) for _ in range(2))
        near, far = (pages_of(host.client, tensors, pool) for host in (here, there))
        assert all(near.store(pool, HASHES, SLOTS, None))
        here.wait_shared(PAGES)
        tensors[:, :, :PAGES] = 0
        assert far.load(pool, HASHES, SLOTS, None) == PAGES
        assert np.array_equal(tensors, content)
        counts = there.daemon.slots()
        assert sum(slot.counts.memory_tokens + slot.counts.missed_tokens for slot in counts) == 0


@pytest.mark.parametrize("pool", ["kv", "mamba"])
def test_a_load_reads_pages_that_are_on_disk(daemon: DiskDaemon, pool: str) -> None:
    tensors = np.zeros((2, LAYERS, BLOCKS, TOKENS, 2, 8), np.uint16)
    tensors[:, :, :PAGES] = np.random.default_rng(1).integers(1, 1 << 16, tensors[:, :, :PAGES].shape, np.uint16)
    content = tensors.copy()
    with daemon.client(timeout=PATIENCE_S) as client:
        pages = pages_of(client, tensors, pool)
        assert all(pages.store(pool, HASHES, SLOTS, None))
        assert not daemon.save().trouble
        daemon.flush("memory")
        tensors[:] = 0
        assert pages.load(pool, HASHES, SLOTS, None) == PAGES
        assert np.array_equal(tensors, content)


@pytest.mark.parametrize("pool", ["kv", "mamba"])
def test_a_load_of_pages_that_are_nowhere_does_not_ask_the_daemon(
    daemon: DiskDaemon, standing_clock: VirtualClock, pool: str
) -> None:
    tensors = np.ones((2, LAYERS, BLOCKS, TOKENS, 2, 8), np.uint16)
    with daemon.client(timeout=PATIENCE_S) as client:
        pages = pages_of(client, tensors, pool)
        assert all(pages.store(pool, HASHES[:2], SLOTS[: 2 * TOKENS], None))
        daemon.signal(signal.SIGSTOP)
        standing_clock.is_stuck, began = in_main_thread, standing_clock.now
        try:
            assert pages.load(pool, HASHES, SLOTS, None) == 2
            assert pages.load(pool, HASHES[2:], SLOTS[2 * TOKENS :], None) == 0
            assert standing_clock.now == began, "a load waited for the daemon"
        finally:
            standing_clock.is_stuck = lambda: False
            daemon.signal(signal.SIGCONT)


@pytest.mark.parametrize("pool", ["kv", "mamba"])
def test_pages_in_memory_stay_while_a_load_waits_for_others(daemon: DiskDaemon, pool: str) -> None:
    tensors = np.random.default_rng(1).integers(1, 1 << 16, (2, LAYERS, BLOCKS, TOKENS, 2, 8), np.uint16)
    content = tensors.copy()
    with daemon.client(timeout=PATIENCE_S) as client, ThreadPoolExecutor(1) as thread:
        pages = pages_of(client, tensors, pool)
        assert all(pages.store(pool, HASHES, SLOTS, None))
        assert not daemon.save().trouble
        daemon.flush("memory")
        assert pages.load(pool, HASHES[:2], SLOTS[: 2 * TOKENS], None) == 2
        tensors[:, :, :PAGES] = 0
        with daemon.stopped_worker():
            load = thread.submit(pages.load, pool, HASHES, SLOTS, None)
            assert eventually(lambda: pins(daemon) == 2), "pages may be evicted while others are read"
            daemon.flush("memory")
        assert load.result(PATIENCE_S) == PAGES
        assert np.array_equal(tensors, content)
        assert pins(daemon) == 0


def test_pages_that_are_left_out_are_no_failed_backup() -> None:
    """SGLang would warn of one; pages that the daemon rejects are a failure."""
    tensors, slots = np.ones((2, LAYERS, NEW_PAGES, TOKENS, 2, 8), np.uint16), torch.arange(NEW_PAGES * TOKENS)
    with small_daemon() as daemon, daemon.client() as client:
        until_left_out(client)
        pages, found, new = pages_of(client, tensors), NEW_PAGES, HASHES
        for prompt in range(100):
            use_all_that_return(client)
            new = [sha256(b"%d of %d" % (page, prompt)).hexdigest() for page in range(NEW_PAGES)]
            pages.stored.clear()
            assert pages.store(FULL, new, slots, None) == [True] * NEW_PAGES
            found = pages.count(new, None)
            if found < NEW_PAGES:
                break
        assert found < NEW_PAGES, "no page was left out"
        assert sum(batch.pages for batch in pages.stored) == found
        client.close()
        assert pages.store(FULL, new, slots, None) == [False] * NEW_PAGES


def test_an_offload_of_pages_that_are_left_out_is_not_offered_again() -> None:
    """SGLang would offer the pages again with the next ones of their prompt, and the daemon learn that they return."""
    tensors = [list(part) for part in np.ones((2, LAYERS, NEW_PAGES, TOKENS, 2, 8), np.uint16)]
    with small_daemon() as daemon, daemon.client() as client:
        until_left_out(client)
        cache = client.register(tensors, layout="separate_blocks", model="test", page_tokens=TOKENS)
        left_out = 0
        for prompt in range(100):
            use_all_that_return(client)
            first = 1000 * prompt
            store = cache.async_store(range(first, first + NEW_PAGES * TOKENS), range(NEW_PAGES))
            offload = Offload([store])
            assert offload.wait(PATIENCE_S) and offload.poll()
            result = store.wait(0.0)
            assert offload.stored and result.refused == 0 and result.reason == ""
            left_out += result.left_out
        assert left_out
        counts = cache.copier().counts
        assert counts.failed == counts.dropped == counts.cancelled == 0
        client.close()
        refused = Offload([cache.async_store(range(NEW_PAGES * TOKENS), range(NEW_PAGES))])
        assert refused.wait(PATIENCE_S) and not refused.stored, "pages that are refused are offered again"
