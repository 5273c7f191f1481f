"""Tests the worker's half with a daemon and torch tensors, against plain indexing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from secrets import token_hex
from unittest import mock

import msgspec
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from eventually import PATIENCE_S
from leaving_out import small_daemon, until_left_out, use_all_that_return
from pagetier.client import Client
from pagetier.client.engines.vllm import worker as half
from pagetier.client.engines.vllm.messages import Finished, GroupLoad, LoadCommand, StepCommands, StoreCommand
from pagetier.client.engines.vllm.worker import WorkerHalf, Zeroing
from pagetier.client.keys import Keys
from pagetier.kernels.layout.page_layout import Shard
from running_daemon import RunningDaemon
from vllm_caches import BLOCKS, CACHES, HEADS, TOKENS, VllmCache, aliased, heads_first
from vllm_worker_world import ends, keys_of, load_command, same, slow_of, store_command, worker_of

ARENA_FRAME = "4KiB"
BLOCKS_TO_STORE = (7, 2, 19, 23, 1)
BLOCKS_TO_LOAD = (3, 22, 4, 11, 8)


@pytest.fixture(scope="module")
def client(daemon: RunningDaemon) -> Iterator[Client]:
    with daemon.client() as attached:
        yield attached


@pytest.mark.parametrize("name", CACHES)
def test_pages_of_every_cache_shape_are_stored_and_loaded(name: str, client: Client) -> None:
    salt = token_hex(8)
    source, target = CACHES[name](), CACHES[name]()
    source.fill(1)
    target.fill(2)
    before = [target.page(block) for block in range(BLOCKS)]
    storing = worker_of(client, source, salt=salt)
    storing.store([store_command(storing, 0, BLOCKS_TO_STORE)])
    ends(storing)
    loading = worker_of(client, target, salt=salt)
    loading.load([load_command(loading, client, (0, BLOCKS_TO_LOAD))])
    done = ends(loading)
    assert done.loaded == {"loading"} and not done.failed
    for block in range(BLOCKS):
        if block in BLOCKS_TO_LOAD:
            assert same(target.page(block), source.page(BLOCKS_TO_STORE[BLOCKS_TO_LOAD.index(block)]))
        else:
            assert same(target.page(block), before[block]), f"block {block} was not part of the load"


@pytest.mark.parametrize("name", ["heads first", "tokens first in memory", "smaller blocks", "latents with a head"])
def test_ranks_that_divide_tokens_have_a_part_of_each_page(name: str, client: Client) -> None:
    salt, source, target = token_hex(8), CACHES[name](), CACHES[name]()
    source.fill(1)
    storing, loading = (worker_of(client, cache, salt=salt, contexts=2) for cache in (source, target))
    storing.store([store_command(storing, 0, BLOCKS_TO_STORE)])
    ends(storing)
    loading.load([load_command(loading, client, (0, BLOCKS_TO_LOAD))])
    assert not ends(loading).failed
    for stored, loaded in zip(BLOCKS_TO_STORE, BLOCKS_TO_LOAD, strict=True):
        assert same(target.page(loaded), source.page(stored))


def test_no_copy_touches_a_cache_that_sleeps(client: Client) -> None:
    """Copies in progress end, later ones are a miss or rejected, and after resume() pages are copied again."""
    salt, cache = token_hex(8), heads_first()
    cache.fill(1)
    worker = worker_of(client, cache, salt=salt, settings=slow_of(cache, client, 20))
    worker.store([store_command(worker, 0, BLOCKS_TO_STORE)])
    ends(worker)
    load = load_command(worker, client, (0, BLOCKS_TO_LOAD))
    worker.store([store_command(worker, 0, BLOCKS_TO_STORE, held=True, prompt=1)])
    assert worker.suspend() and worker.suspend(), "all copies have ended"
    assert all(storing.store.ended for storing in worker._storing)
    asleep = [cache.page(block) for block in range(BLOCKS)]
    worker.store([store_command(worker, 0, BLOCKS_TO_STORE, prompt=2)])
    worker.load([load])
    done = ends(worker)
    assert done.failed == {"loading"} and done.stored == {"storing"}
    assert all(same(cache.page(block), asleep[block]) for block in range(BLOCKS))
    with client.match(keys_of(worker, 0, len(BLOCKS_TO_STORE), 2)) as match:
        assert not len(match), "a page of a cache without memory was stored"
    before = worker.rank_groups[0].copier.settings
    worker.resume()
    assert worker.rank_groups[0].copier.settings == before
    worker.load([load])
    assert not ends(worker).failed
    assert same(cache.page(BLOCKS_TO_LOAD[0]), cache.page(BLOCKS_TO_STORE[0]))


def test_an_engine_that_is_put_to_sleep_waits_thirty_seconds_for_copies(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/vllm.md says."""
    worker, waited = worker_of(client, heads_first(), salt=token_hex(8)), list[float]()
    copier = worker.rank_groups[0].copier
    ends = copier.close
    monkeypatch.setattr(type(copier), "close", lambda _, seconds: waited.append(seconds))
    assert not worker.suspend() and waited == [30.0]
    monkeypatch.undo()
    assert ends(PATIENCE_S)


def test_a_rank_executes_the_commands_for_its_own_layers(client: Client) -> None:
    """Two pipeline stages receive the same commands for the groups of both, in the same blocks."""
    salt, sources, targets = token_hex(8), [heads_first(), heads_first()], [heads_first(), heads_first()]
    for at, cache in enumerate((*sources, *targets)):
        cache.fill(at)
    storing = [worker_of(client, cache, salt=salt, first=at) for at, cache in enumerate(sources)]
    commands = []
    for at, worker in enumerate(storing):
        keys = keys_of(worker, 0, len(BLOCKS_TO_STORE))
        commands.append(StoreCommand("storing", at, 0, keys.data, BLOCKS_TO_STORE, salt))
    for worker in storing:
        worker.store(commands)
        ends(worker)
    handles = []
    for at, worker in enumerate(storing):
        with client.match(keys_of(worker, 0, len(BLOCKS_TO_LOAD))) as match:
            handles.append(GroupLoad(at, match.to_handle(), BLOCKS_TO_LOAD))
    for at, (source, target) in enumerate(zip(sources, targets, strict=True)):
        loading = worker_of(client, target, salt=salt, first=at)
        loading.load([LoadCommand("loading", tuple(handles))])
        done = ends(loading)
        assert done.loaded == {"loading"} and not done.failed
        for stored, loaded in zip(BLOCKS_TO_STORE, BLOCKS_TO_LOAD, strict=True):
            assert same(target.page(loaded), source.page(stored))


def test_pages_are_stored_under_the_salt_of_the_command(client: Client) -> None:
    """After a reset pages were still stored in the worker's first namespace, so that no flush could remove them."""
    cache = heads_first()
    worker = worker_of(client, cache, salt=token_hex(8))
    before = worker.rank_groups[0].namespace
    after = msgspec.structs.replace(before, salt=token_hex(16))
    for namespace, block in ((before, 1), (after, 2), (before, 3)):
        keys = namespace.keys(range(TOKENS * block, TOKENS * (block + 1)))
        worker.store([StoreCommand("storing", 0, 0, keys.data, (block,), salt=namespace.salt)])
        ends(worker)
    assert client.flush(after)
    there = []
    for namespace, block in ((before, 1), (after, 2), (before, 3)):
        with client.match(namespace.keys(range(TOKENS * block, TOKENS * (block + 1)))) as match:
            there.append(len(match))
    assert there == [1, 0, 1]


def test_small_loads_complete_in_the_call_and_others_in_the_background(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    salt = token_hex(8)
    source, target = heads_first(), heads_first()
    source.fill(1)
    storing, loading = (worker_of(client, cache, salt=salt) for cache in (source, target))
    storing.store([store_command(storing, 0, BLOCKS_TO_STORE)])
    ends(storing)
    command = load_command(loading, client, (0, BLOCKS_TO_LOAD))
    monkeypatch.setattr(half, "_SYNC_LOAD_BYTES", len(BLOCKS_TO_LOAD) * loading.rank_groups[0].cache.page.nbytes)
    loading.load([command, msgspec.structs.replace(command, request="beside")])
    assert [bool(one.loads) for one in loading._loading.values()] == [False, True]
    assert "loading" in loading.finished(False).loaded
    assert not ends(loading).failed
    assert all(
        same(target.page(to), source.page(block)) for block, to in zip(BLOCKS_TO_STORE, BLOCKS_TO_LOAD, strict=True)
    )
    slow = worker_of(client, target, salt=salt, settings=slow_of(target, client, 1000))
    slow.load([command])
    assert slow._loading["loading"].loads, "loaded faster than the configured bandwidth"
    ends(slow)


def test_groups_that_share_memory_keep_their_pages(client: Client) -> None:
    salt = token_hex(8)
    sources, targets = aliased(), aliased()
    blocks = ((1, 2, 3), (4, 5, 6), (7, 8, 9))
    for cache, own in zip(sources, blocks, strict=True):
        for block in own:
            cache.put(block, block)
    storing = worker_of(client, *sources, salt=salt)
    storing.store([store_command(storing, at, own) for at, own in enumerate(blocks)])
    ends(storing)
    loading = worker_of(client, *targets, salt=salt)
    out = ((11, 14, 17), (12, 15, 18), (13, 16, 19))
    loading.load([load_command(loading, client, *enumerate(out))])
    assert not ends(loading).failed
    for cache, other, own, there in zip(sources, targets, blocks, out, strict=True):
        assert all(same(cache.page(a), other.page(b)) for a, b in zip(own, there, strict=True))


@pytest.mark.parametrize("name", ["heads first", "kv second", "latents with a head", "padded states"])
def test_pages_stored_by_two_ranks_are_loaded_by_two_others(name: str, client: Client) -> None:
    """Two ranks store and two others load; a page is readable when both have stored their part."""
    salt = token_hex(8)
    sources, targets = ([CACHES[name](), CACHES[name]()] for _ in range(2))
    sources[0].fill(1)
    sources[1].fill(1 if "latents" in name else 2)  # all ranks have the same latents
    shards = [Shard(rank, 2) for rank in range(2)]
    for at, (shard, cache) in enumerate(zip(shards, map(_half, sources), strict=True)):
        rank = worker_of(client, cache, salt=salt, shard=shard)
        rank.store([store_command(rank, 0, BLOCKS_TO_STORE)])
        ends(rank)
        assert len(client.match(keys_of(rank, 0, 5))) == 5 * at
    for shard, cache in zip(shards, map(_half, targets), strict=True):
        rank = worker_of(client, cache, salt=salt, shard=shard)
        rank.load([load_command(rank, client, (0, BLOCKS_TO_LOAD))])
        assert not ends(rank).failed
    for source, target in zip(map(_half, sources), map(_half, targets), strict=True):
        for one, other in zip(BLOCKS_TO_STORE, BLOCKS_TO_LOAD, strict=True):
            assert same(source.page(one), target.page(other))


def _half(cache: VllmCache) -> VllmCache:
    """Returns the cache of one of two ranks: half of the heads, if there are several."""
    shape = cache.layers[0].shape
    axis = 3 if len(shape) == 5 else 1
    if shape[axis] != HEADS:
        return cache
    spec = replace(cache.spec, num_kv_heads=HEADS // 2)
    return VllmCache(spec, [layer.narrow(axis, 0, HEADS // 2) for layer in cache.layers], cache.axis, cache.smaller)


def test_pages_with_block_0_are_not_stored(client: Client) -> None:
    cache = heads_first()
    cache.fill(1)
    worker = worker_of(client, cache, salt=token_hex(8))
    worker.store([store_command(worker, 0, (5, 0, 6))])
    ends(worker)
    keys = keys_of(worker, 0, 3)
    found = [len(client.match(keys[at : at + 1])) for at in range(3)]
    assert found == [1, 0, 1]


@pytest.mark.parametrize("zeroing", Zeroing)
def test_blocks_are_never_stored_with_the_content_of_a_later_step(client: Client, zeroing: Zeroing) -> None:
    """Stores are slow, and each step overwrites blocks of earlier ones: stores are cancelled, but no page is wrong.

    All stores of an example may be cancelled on a busy machine, but not those of all examples.
    """
    found = 0

    @settings(max_examples=10, deadline=None, phases=(Phase.explicit, Phase.generate))
    @given(steps=st.lists(st.lists(st.integers(1, 16), min_size=4, unique=True), min_size=3, max_size=8))
    def check(steps: list[list[int]]) -> None:
        nonlocal found
        found += pages_found_after(client, zeroing, steps)

    check()
    assert found


def pages_found_after(client: Client, zeroing: Zeroing, steps: list[list[int]]) -> int:
    """Stores the blocks of each step, and returns how many pages are found, whose content is checked."""
    cache = heads_first()
    salt = token_hex(8)
    worker = worker_of(client, cache, salt=salt, settings=slow_of(cache, client, 100), zeroing=zeroing)
    contents = {}
    for step, blocks in enumerate(steps):
        if zeroing is Zeroing.AFTER_STORES_END:
            worker.end_overwritten_stores(StepCommands(written=frozenset(blocks)))
        for block in blocks:
            cache.put(block, 1000 * step + block)
        contents[step] = [cache.page(block) for block in blocks]
        worker.store([store_command(worker, 0, blocks, prompt=step)])
    ends(worker)
    loading = worker_of(client, reader := heads_first(), salt=salt)
    found = 0
    for step, pages in contents.items():
        keys = keys_of(worker, 0, len(pages), step)
        for at, page in enumerate(pages):
            if loads_one(loading, client, keys[at : at + 1]):
                assert same(reader.page(1), page), f"page {at} of step {step} has content of another step"
                found += 1
    return found


def loads_one(worker: WorkerHalf, client: Client, key: Keys) -> bool:
    """Returns whether the page is cached, and loads it into block 1."""
    with client.match(key) as match:
        worker.load([LoadCommand("one", (GroupLoad(0, match.to_handle(), (1,)),))])
        return not ends(worker).failed


def stored_pages(client: Client, worker: WorkerHalf, prompt: int) -> int:
    with client.match(keys_of(worker, 0, len(BLOCKS_TO_STORE), prompt)) as match:
        return len(match)


def test_a_store_waits_for_its_delay_or_for_a_step_that_computes_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half, "_STORE_DELAY_S", 600.0)
    worker = worker_of(client, heads_first(), salt=token_hex(8))
    worker.store([store_command(worker, 0, BLOCKS_TO_STORE)])
    other = worker_of(client, heads_first(), salt=token_hex(8), zeroing=Zeroing.BEFORE_STORES_END)
    other.store([store_command(other, 0, BLOCKS_TO_STORE)])  # is not delayed
    ends(other)
    assert worker.finished(False) == Finished(frozenset(), frozenset(), frozenset(), frozenset())
    assert worker._storing and not stored_pages(client, worker, 0)
    ends(worker)
    assert stored_pages(client, worker, 0) == len(BLOCKS_TO_STORE)


def test_a_delayed_store_is_not_lost_to_a_step_that_needs_its_blocks(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half, "_STORE_DELAY_S", 600.0)
    monkeypatch.setattr(half, "_CANCEL_AFTER_S", 20.0)
    worker = worker_of(client, heads_first(), salt=token_hex(8))
    for prompt in range(2):
        worker.store([store_command(worker, 0, BLOCKS_TO_STORE, prompt=prompt)])
    worker.end_overwritten_stores(StepCommands(written=frozenset(BLOCKS_TO_STORE[:1])))
    assert [stored_pages(client, worker, prompt) for prompt in range(2)] == [len(BLOCKS_TO_STORE)] * 2
    ends(worker)


def test_no_store_is_delayed_if_none_may_outlive_its_step(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half, "_STORE_DELAY_S", 600.0)
    monkeypatch.setattr(half, "_CANCEL_AFTER_S", 20.0)
    worker = worker_of(client, heads_first(), salt=token_hex(8), zeroing=Zeroing.BEFORE_STORES_END)
    worker.store([store_command(worker, 0, BLOCKS_TO_STORE)])
    assert stored_pages(client, worker, 0) == len(BLOCKS_TO_STORE)
    ends(worker)


class StepEvent(threading.Event):
    """Comes while something looks whether it has come, the second time; `waits_for` looks are in vain."""

    waits_for = 1

    def query(self) -> bool:
        if self.waits_for == 0:
            self.set()
        self.waits_for -= 1
        return self.is_set()


def test_stores_that_may_not_outlive_their_step_wait_for_its_end(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU computes it later than the host hands it over."""
    monkeypatch.setattr(half, "_CANCEL_AFTER_S", 20.0)
    worker = worker_of(client, heads_first(), salt=token_hex(8), zeroing=Zeroing.BEFORE_STORES_END)
    worker._event = StepEvent
    worker.store([store_command(worker, 0, BLOCKS_TO_STORE)])
    assert stored_pages(client, worker, 0) == len(BLOCKS_TO_STORE)
    ends(worker)


@pytest.mark.parametrize("error", [None, RuntimeError("the device has failed")])
def test_stores_of_a_step_that_does_not_end_are_cancelled(
    error: Exception | None, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half, "_STEP_S", 0.0)
    monkeypatch.setattr(half, "_CANCEL_AFTER_S", 0.0)
    monkeypatch.setattr(StepEvent, "waits_for", -1)
    worker = worker_of(client, heads_first(), salt=token_hex(8), zeroing=Zeroing.BEFORE_STORES_END)
    event = StepEvent()
    if error is not None:
        monkeypatch.setattr(event, "query", mock.Mock(side_effect=error))
    worker._event = lambda: event
    worker.store([store_command(worker, 0, BLOCKS_TO_STORE)])
    assert all(storing.cancelled for storing in worker._storing)
    event.set()
    ends(worker)
    assert not stored_pages(client, worker, 0)


def test_k_and_v_are_not_confused_by_the_shape_of_the_cache(client: Client) -> None:
    """Pages of one layout have the same meaning in caches of two shapes."""
    salt = token_hex(8)
    source, target = CACHES["kv first"](), CACHES["kv second"]()
    source.fill(1)
    storing, loading = (worker_of(client, cache, salt=salt) for cache in (source, target))
    storing.store([store_command(storing, 0, (5,))])
    ends(storing)
    loading.load([load_command(loading, client, (0, (9,)))])
    assert not ends(loading).failed
    for one, other in zip(source.layers, target.layers, strict=True):
        assert torch.equal(one[:, 5], other[9])


def test_pages_that_are_left_out_release_their_blocks_and_are_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    with small_daemon() as daemon, daemon.client() as client:
        until_left_out(client)
        worker, blocks = worker_of(client, heads_first(), salt=token_hex(8)), range(1, BLOCKS)
        asked = stored = 0
        for number in range(30):
            use_all_that_return(client)
            command = store_command(worker, 0, blocks, held=True, prompt=number)
            worker.store([msgspec.structs.replace(command, before=b"")])
            assert ends(worker).stored == {command.request}
            with client.match(keys_of(worker, 0, len(blocks), number)) as match:
                stored += len(match)
            asked += len(blocks)
        assert stored < asked, "no page was left out"
        assert worker.counters.taken().get("stored_pages", 0) == stored
        assert caplog.messages == []
