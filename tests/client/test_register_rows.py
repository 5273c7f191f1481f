"""Caches of opaque rows are registered, matched, stored and loaded like any other; a page is a block of all buffers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from eventually import PATIENCE_S
from pagetier.client import CacheGroup, Client, FullAttention, Recurrent, RegisteredGroups, SlidingWindow
from pagetier.kernels.layout.cache_layout import LayoutError
from running_daemon import RunningDaemon

ARENA = "64MiB"
PAGE, PAGES, BLOCKS = 256, 6, 24
TOKENS = PAGE * PAGES
FULL = ((64, 584), (2, 584), (64, 132)), ((64, 584),), ((2, 584),)
"""Blocks of 256 tokens with 4 and with 128 tokens a state, and an index."""
WINDOW = ((256, 584), (3, 8, 512)), ((256, 584),), ((256, 584), (2, 8, 256))
"""Blocks of 256 tokens in a window, and the states of compressors."""
WRITTEN, READ = np.arange(PAGES)[::-1].copy(), np.arange(BLOCKS - PAGES, BLOCKS)


class RowEngine:
    """A rank of an engine whose two groups have opaque rows: full attention, and a window of one page."""

    def __init__(self, client: Client, model: str, seed: int, copies: str = "host", **options: Any) -> None:
        self._random = np.random.default_rng(seed)
        self.full, self.window = self._buffers(FULL), self._buffers(WINDOW)
        self.register(client, model, **options)
        if copies == "device":
            for cache in self.groups.caches:
                cache._on_gpu = True

    def register(self, client: Client, model: str, **options: Any) -> None:
        """Registers the buffers as they are now."""
        kinds = FullAttention(PAGE), SlidingWindow(PAGE, window=PAGE)
        groups = [
            CacheGroup(kv_caches=layers, layout="rows", kind=kind)
            for layers, kind in zip((self.full, self.window), kinds, strict=True)
        ]
        self.groups: RegisteredGroups = client.register(groups=groups, model=model, dtype="uint8", **options)

    def _buffers(self, sizes: Sequence[Sequence[tuple[int, ...]]]) -> list[list[Any]]:
        """Returns buffers with unequal numbers of blocks."""
        return [
            [self._random.integers(0, 256, (BLOCKS + at, *shape), np.uint8) for at, shape in enumerate(shapes)]
            for shapes in sizes
        ]

    def content(self) -> list[Any]:
        """Returns copies of all buffers."""
        return [buffer.copy() for group in (self.full, self.window) for layer in group for buffer in layer]

    def loaded_from(self, source: Sequence[Any]) -> list[Any]:
        """Returns the content of all buffers after a load of what the source has in other blocks, without loading."""
        then = self.content()
        full = sum(map(len, self.full))
        for at, (mine, its) in enumerate(zip(then, source, strict=True)):
            pages = slice(None) if at < full else slice(PAGES - 1, None)
            mine[READ[pages]] = its[WRITTEN[pages]]
        return then


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[Client]:
    with daemon.client(timeout=PATIENCE_S) as attached:
        yield attached


def store(engine: RowEngine) -> list[int]:
    return [result.stored for result in engine.groups.store(range(TOKENS), [WRITTEN, WRITTEN])]


def load(engine: RowEngine) -> int:
    with engine.groups.match(range(TOKENS)) as hit:
        assert hit.tokens == TOKENS
        return engine.groups.load(hit, [READ, READ], strict=True)


def is_same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return all(map(np.array_equal, one, other))


@pytest.mark.parametrize("copies", ["host", "device"])
def test_a_prompt_is_loaded_into_other_blocks_and_nothing_else_changes(client: Client, copies: str) -> None:
    model = os.urandom(8).hex()
    source, target = (RowEngine(client, model, seed, copies) for seed in (1, 2))
    before = source.content()
    assert store(source) == [PAGES, PAGES]
    wanted = target.loaded_from(before)
    assert load(target) == TOKENS
    assert is_same(target.content(), wanted)
    assert is_same(source.content(), before)


def test_a_forgotten_buffer_is_noticed(client: Client) -> None:
    """The comparison sees a group that leaves out the states of one layer."""
    model = os.urandom(8).hex()
    source, target = (RowEngine(client, model, seed) for seed in (1, 2))
    *wanted, forgotten = target.loaded_from(source.content())
    left = [engine.window[2].pop() for engine in (source, target)][1]
    for engine in (source, target):
        engine.register(client, model)
    store(source)
    load(target)
    assert is_same(target.content(), wanted)
    assert not np.array_equal(left, forgotten)


def test_ranks_that_have_the_same_rows_store_a_page_together(daemon: RunningDaemon) -> None:
    """The page is readable when both have stored their share; each rank loads all of it."""
    model = os.urandom(8).hex()
    with daemon.client(timeout=PATIENCE_S) as one, daemon.client(timeout=PATIENCE_S) as other:
        ranks = [RowEngine(one, model, 1, tp_size=2), RowEngine(other, model, 1, tp_rank=1, tp_size=2)]
        before = ranks[0].content()
        store(ranks[0])
        with ranks[0].groups.match(range(TOKENS)) as hit:
            assert hit.tokens == 0, "the other rank's share is missing"
        store(ranks[1])
        for client, rank in ((one, 0), (other, 1)):
            target = RowEngine(client, model, 7, tp_rank=rank, tp_size=2)
            wanted = target.loaded_from(before)
            assert load(target) == TOKENS
            assert is_same(target.content(), wanted)
        alone = RowEngine(one, model, 8)
        wanted = alone.loaded_from(before)
        assert load(alone) == TOKENS, "the rows are the same with any number of ranks"
        assert is_same(alone.content(), wanted)


def test_each_rank_may_have_rows_of_its_own(daemon: RunningDaemon) -> None:
    model, register = os.urandom(8).hex(), Client.register
    given = np.random.default_rng(3).integers(0, 256, (2, BLOCKS, 7, 33), np.uint8)
    own: dict[str, Any] = {"layout": "rows", "model": model, "page_tokens": PAGE, "dtype": "nvfp4", "num_kv_heads": 2}
    with daemon.client(timeout=PATIENCE_S) as one, daemon.client(timeout=PATIENCE_S) as other:
        caches = [
            register(client, [[given[rank]]], tp_rank=rank, tp_size=2, **own)
            for rank, client in enumerate((one, other))
        ]
        for cache in caches:
            cache.store(range(TOKENS), WRITTEN)
        for rank, cache in enumerate(caches):
            wanted = given[rank].copy()
            wanted[READ] = wanted[WRITTEN]
            with cache.match(range(TOKENS)) as hit:
                assert cache.load(hit, READ, strict=True) == TOKENS
            assert np.array_equal(given[rank], wanted)
        with pytest.raises(LayoutError, match="row 0: 1 heads, but rank 0 of 2 has 2 of 4"):
            register(one, [[given[0]]], tp_size=2, **own | {"num_kv_heads": 4})


def test_only_whole_pages_are_skipped(client: Client) -> None:
    buffer = np.random.default_rng(4).integers(0, 256, (BLOCKS, 9), np.uint8)
    cache = client.register([[buffer]], layout="rows", model=os.urandom(8).hex(), page_tokens=PAGE, dtype="uint8")
    cache.store(range(TOKENS), WRITTEN)
    wanted = buffer.copy()
    wanted[READ[2:]] = wanted[WRITTEN[2:]]
    with cache.match(range(TOKENS)) as hit:
        with pytest.raises(ValueError, match=f"opaque rows are copied in whole pages of {PAGE} tokens"):
            cache.load(hit, READ, skip_tokens=PAGE + 1)
        assert cache.load(hit, READ, skip_tokens=2 * PAGE) == TOKENS
    assert np.array_equal(buffer, wanted)


def test_a_snapshot_that_all_ranks_have_is_stored_once(daemon: RunningDaemon) -> None:
    """A recurrent state that is not divided among the ranks has the layout of rows."""
    states = np.random.default_rng(5).integers(0, 256, (BLOCKS, 64), np.uint8)
    group = CacheGroup(kv_caches=[[states]], layout="rows", kind=Recurrent(PAGE))
    with daemon.client(timeout=PATIENCE_S) as client:
        (cache,) = client.register(groups=[group], model=os.urandom(8).hex(), dtype="uint8", tp_size=2).caches
        assert cache.paged.page.nbytes == 64


def test_rows_of_bytes_need_a_dtype(client: Client) -> None:
    buffer = np.zeros((BLOCKS, 9), np.uint8)
    with pytest.raises(LayoutError, match="elements of type uint8 may mean anything: pass dtype"):
        client.register([[buffer]], layout="rows", model="m", page_tokens=PAGE)
