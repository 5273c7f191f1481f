"""Tests the worker's half with a daemon and torch tensors, against plain indexing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from secrets import token_hex

import msgspec
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pagetier.client import Client
from pagetier.client.async_copy.copier import open_copier
from pagetier.client.engines.vllm import worker as half
from pagetier.client.engines.vllm.kv_tensors import paged_cache
from pagetier.client.engines.vllm.messages import GroupLoad, LoadCommand, StepCommands, StoreCommand
from pagetier.client.engines.vllm.worker import Finished, RankGroup, WorkerHalf, Zeroing
from pagetier.client.keys import Keys, Namespace
from pagetier.client.match import MatchHandle
from pagetier.kernels.config.copy_settings import CopySettings
from pagetier.kernels.layout.page_layout import Shard
from running_daemon import RunningDaemon, eventually
from vllm_caches import BLOCKS, CACHES, HEADS, TOKENS, Cache, aliased, heads_first

BLOCKS_TO_STORE = (7, 2, 19, 23, 1)
BLOCKS_TO_LOAD = (3, 22, 4, 11, 8)
COPYING = CopySettings()
WHOLE = Shard(0, 1)


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon("16MiB", "4KiB") as running:
        yield running


@pytest.fixture(scope="module")
def client(daemon: RunningDaemon) -> Iterator[Client]:
    with daemon.client() as attached:
        yield attached


def worker_of(
    client: Client,
    *caches: Cache,
    salt: str,
    settings: CopySettings = COPYING,
    shard: Shard = WHOLE,
    zeroing: Zeroing = Zeroing.AFTER_MAKE_ROOM,
) -> WorkerHalf:
    lanes = []
    for at, cache in enumerate(caches):
        paged = paged_cache(cache.layers, cache.spec, shard, HEADS)
        space = Namespace(
            model="test", dtype="any", page_tokens=TOKENS, group=str(at), layout=paged.page.layout, salt=salt
        )
        lanes.append(RankGroup(paged, space, open_copier(client, paged, settings)))
    return WorkerHalf(client, lanes, lambda: None, zeroing)


def keys_of(worker: WorkerHalf, group: int, pages: int, prompt: int = 0) -> Keys:
    return worker.rank_groups[group].namespace.keys(range(prompt << 20, (prompt << 20) + pages * TOKENS))


def store_command(
    worker: WorkerHalf, group: int, blocks: Sequence[int], *, held: bool = False, prompt: int = 0
) -> StoreCommand:
    keys = keys_of(worker, group, len(blocks), prompt)
    return StoreCommand("storing", group, 0, keys.data, tuple(blocks), held, salt=keys.namespace.salt)


def load_command(worker: WorkerHalf, client: Client, *wanted: tuple[int, Sequence[int]]) -> LoadCommand:
    groups = []
    for group, blocks in wanted:
        with client.match(keys_of(worker, group, len(blocks))) as match:
            groups.append(GroupLoad(group, match.to_handle(), tuple(blocks)))
    return LoadCommand("loading", tuple(groups))


def ends(worker: WorkerHalf) -> Finished:
    """Returns everything that has ended, once nothing is in progress."""
    finished: list[Finished] = []

    def quiet() -> bool:
        finished.append(worker.finished(True))
        return not worker._storing and not worker._loading

    assert eventually(quiet, 20.0)
    return Finished(
        frozenset().union(*(one.stored for one in finished)),
        frozenset().union(*(one.loaded for one in finished)),
        frozenset().union(*(one.failed for one in finished)),
        frozenset().union(*(one.blocks for one in finished)),
    )


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


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
    loading.load([command, replace(command, request="beside")])
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


def _half(cache: Cache) -> Cache:
    """Returns the cache of one of two ranks: half of the heads, if there are several."""
    shape = cache.layers[0].shape
    axis = 3 if len(shape) == 5 else 1
    if shape[axis] != HEADS:
        return cache
    spec = replace(cache.spec, num_kv_heads=HEADS // 2)
    return Cache(spec, [layer.narrow(axis, 0, HEADS // 2) for layer in cache.layers], cache.axis, cache.smaller)


def test_pages_with_block_0_are_not_stored(client: Client) -> None:
    cache = heads_first()
    cache.fill(1)
    worker = worker_of(client, cache, salt=token_hex(8))
    worker.store([store_command(worker, 0, (5, 0, 6))])
    ends(worker)
    keys = keys_of(worker, 0, 3)
    found = [len(client.match(keys[at : at + 1])) for at in range(3)]
    assert found == [1, 0, 1]


def test_a_request_that_keeps_its_blocks_is_reported_once(client: Client) -> None:
    cache = heads_first()
    worker = worker_of(client, cache, salt=token_hex(8))
    worker.store([store_command(worker, 0, (5, 6), held=True), store_command(worker, 0, (7,), held=True, prompt=1)])
    stored: list[str] = []

    def named() -> bool:
        stored.extend(worker.finished(False).stored)
        return not worker._storing

    assert eventually(named, 10.0)
    assert stored == ["storing"]
    assert not worker.finished(False).stored


def test_an_evicted_page_fails_the_whole_load(client: Client) -> None:
    first, second, _ = aliased()
    worker = worker_of(client, first, second, salt=token_hex(8))
    worker.store([store_command(worker, at, (at + 1, at + 3)) for at in range(2)])
    ends(worker)
    command = load_command(worker, client, (0, (10, 11)), (1, (12, 13)))
    pages = command.groups[1].pages
    worse = MatchHandle(pages.segments_id, pages.page_tokens, pages.entries, bytes(8) + pages.serials[8:])
    worker.load([LoadCommand("loading", (command.groups[0], GroupLoad(1, worse, command.groups[1].blocks)))])
    done = ends(worker)
    assert done.loaded == done.failed == {"loading"}
    assert done.blocks == {10, 11, 12, 13}
    assert worker.counters.taken()["failed_loads"] == 1


def test_pages_of_another_daemon_are_not_loaded(client: Client) -> None:
    worker = worker_of(client, heads_first(), salt=token_hex(8))
    command = LoadCommand("loading", (GroupLoad(0, MatchHandle(1, 16, bytes(8), bytes(16)), (3, 4)),))
    worker.load([command])
    assert ends(worker).failed == {"loading"}


@pytest.mark.parametrize("zeroing", Zeroing)
@settings(max_examples=10, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(steps=st.lists(st.lists(st.integers(1, 16), min_size=4, unique=True), min_size=3, max_size=8))
def test_blocks_are_never_stored_with_the_content_of_a_later_step(
    client: Client, zeroing: Zeroing, steps: list[list[int]]
) -> None:
    """Stores are slow, and each step overwrites blocks of earlier ones: stores are cancelled, but no page is wrong."""
    cache = heads_first()
    salt = token_hex(8)
    worker = worker_of(client, cache, salt=salt, settings=slow_of(cache, client, 100), zeroing=zeroing)
    contents = {}
    for step, blocks in enumerate(steps):
        if zeroing is Zeroing.AFTER_MAKE_ROOM:
            worker.make_room(StepCommands(written=frozenset(blocks)))
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
    assert found


def loads_one(worker: WorkerHalf, client: Client, key: Keys) -> bool:
    """Returns whether the page is cached, and loads it into block 1."""
    with client.match(key) as match:
        worker.load([LoadCommand("one", (GroupLoad(0, match.to_handle(), (1,)),))])
        return not ends(worker).failed


def slow_of(cache: Cache, client: Client, pages: int) -> CopySettings:
    """Limits stores and loads to `pages` pages a second, one at a time."""
    nbytes = worker_of(client, cache, salt="size").rank_groups[0].cache.page.nbytes
    return CopySettings(chunk=nbytes, depth=1, store_bandwidth=pages * nbytes, load_bandwidth=pages * nbytes)


def test_a_load_is_reported_when_all_groups_have_ended(client: Client) -> None:
    """One group ends long before the other."""
    salt, blocks = token_hex(8), tuple(range(1, 17))
    sources, targets = aliased()[:2], aliased()[:2]
    for block in blocks:
        sources[0].put(block, block)
    storing = worker_of(client, *sources, salt=salt)
    storing.store([store_command(storing, 0, blocks), store_command(storing, 1, (20,))])
    ends(storing)
    loading = worker_of(client, *targets, salt=salt, settings=slow_of(targets[0], client, 40))
    loading.load([load_command(loading, client, (0, blocks), (1, (20,)))])
    loaded = False
    while not loaded:
        finished = loading.finished(False)
        loaded = bool(finished.loaded)
        assert not finished.failed
    assert all(same(sources[0].page(block), targets[0].page(block)) for block in blocks)


def test_a_request_is_reported_when_all_its_blocks_were_read(client: Client) -> None:
    first, second, _ = aliased()
    settings = slow_of(first, client, 30)
    worker = worker_of(client, first, second, salt=token_hex(8), settings=settings)
    commands = [
        store_command(worker, 0, (1,), held=True),
        store_command(worker, 1, tuple(range(2, 12)), held=True),
    ]
    worker.store(commands)
    named: frozenset[str] = frozenset()
    while not named:
        named = worker.finished(False).stored
    assert not worker._storing, "a store is still in progress"


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


def test_close_ends_all_copies(daemon: RunningDaemon) -> None:
    with daemon.client() as client:
        worker = worker_of(client, heads_first(), salt=token_hex(8))
        worker.store([store_command(worker, 0, (1, 2, 3))])
        worker.close()
        assert not client.attached
    assert eventually(lambda: not daemon.header().open_entries)
