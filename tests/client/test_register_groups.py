"""Layer groups that are registered together are matched, loaded and stored as one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from disk_daemon import write_through
from eventually import PATIENCE_S
from hybrid_engine import BLOCK, BLOCKS, PAGE, SNAPSHOT, TOKENS, HybridEngine, same, tables
from pagetier.client import (
    NO_BLOCK,
    CacheGroup,
    FullAttention,
    IncompleteLoadError,
)
from pagetier.client.adapters import AsyncCopier
from running_daemon import RunningDaemon

ARENA = "64MiB"


@pytest.fixture
def engine(daemon: RunningDaemon) -> Iterator[HybridEngine]:
    with daemon.client(timeout=PATIENCE_S) as client:
        yield HybridEngine(client)


def test_all_groups_are_loaded_at_one_token(engine: HybridEngine) -> None:
    stored = engine.groups.store(engine.prompt, tables(0, 3))
    assert [result.stored for result in stored] == [8, 2, 1], "pages without blocks are not stored"
    with engine.groups.match(engine.prompt) as hit:
        assert (hit.tokens, hit.start_pages) == (TOKENS, (0, 6, 3))
        assert engine.groups.load(hit, tables(24, 3), strict=True) == TOKENS
    assert same(engine, 0, 24, 3)


def test_a_hit_of_another_model_of_the_same_shape_is_not_loaded(engine: HybridEngine, daemon: RunningDaemon) -> None:
    engine.groups.store(engine.prompt, tables(0, 3))
    with daemon.client() as client, engine.groups.match(engine.prompt) as hit:
        other = HybridEngine(client)
        with pytest.raises(ValueError, match="were given to the cache of"):
            other.groups.load(hit, tables(24, 3))
        with pytest.raises(ValueError, match="were given to the cache of"):
            other.groups.async_load(hit, tables(24, 3))


def test_a_hit_ends_where_the_last_group_has_state(engine: HybridEngine) -> None:
    full, _, states = tables(0, 1, 2)
    engine.groups.store(engine.prompt, [full, full, states])
    with engine.groups.match(engine.prompt) as hit:
        assert hit.tokens == 3 * SNAPSHOT
        assert engine.groups.load(hit, [full + 24, full + 24, np.array([NO_BLOCK, NO_BLOCK, 40])]) == 3 * SNAPSHOT
    assert np.array_equal(engine.states[2], engine.states[40])
    assert engine.groups.match(engine.prompt, limit=2 * SNAPSHOT + 5).tokens == 2 * SNAPSHOT


def test_groups_that_look_alike_have_pages_of_their_own(daemon: RunningDaemon) -> None:
    """A model may have several groups of the same kind and shape, whose state differs."""
    one, other = np.random.default_rng(13).integers(0, 2**16, (2, 1, BLOCKS, 2, BLOCK, 2, 8), np.uint16)
    alike = [
        CacheGroup(kv_caches=list(tensors), layout="flashinfer", kind=FullAttention(PAGE)) for tensors in (one, other)
    ]
    with daemon.client(timeout=PATIENCE_S) as client:
        groups = client.register(groups=alike, model=os.urandom(8).hex())
        full = np.arange(TOKENS // BLOCK)
        assert [result.stored for result in groups.store(range(TOKENS), [full, full])] == [8, 8]
        with groups.match(range(TOKENS)) as hit:
            assert groups.load(hit, [full + 24, full + 24], strict=True) == TOKENS
    for tensors in (one, other):
        assert np.array_equal(tensors[:, full], tensors[:, full + 24])


def test_background_copies(engine: HybridEngine) -> None:
    stores = engine.groups.async_store(engine.prompt, tables(0, 3))
    assert [store.wait(PATIENCE_S).stored for store in stores] == [8, 2, 1]
    with engine.groups.match(engine.prompt) as hit:
        loads = engine.groups.async_load(hit, tables(24, 3))
        assert [load.pages for load in loads] == [len(match) for match in hit.matches]
    assert all(load.wait(0, PATIENCE_S) for load in loads) and same(engine, 0, 24, 3)


def test_hashes_of_each_group_replace_tokens(engine: HybridEngine) -> None:
    names = [[b"%d of %d" % (page, group) for page in range(count)] for group, count in enumerate((8, 8, 4))]
    engine.groups.store(hashes=names, block_tables=tables(0, 3))
    with engine.groups.match(hashes=names) as hit:
        assert engine.groups.load(hit, tables(24, 3)) == TOKENS
    assert same(engine, 0, 24, 3)
    with pytest.raises(ValueError, match="hashes of 2 groups for 3 groups"):
        engine.groups.match(hashes=names[:2])


def test_a_page_without_a_block_is_not_loaded(engine: HybridEngine) -> None:
    engine.groups.store(engine.prompt, tables(0, 3))
    with engine.groups.match(engine.prompt) as hit:
        with pytest.raises(ValueError, match="a hit at 256 tokens needs blocks that the table"):
            engine.groups.load(hit, tables(24, 2))
        with pytest.raises(ValueError, match="2 block tables for 3 groups"):
            engine.groups.load(hit, tables(24, 3)[:2])
        with pytest.raises(ValueError, match="needs blocks"):
            engine.groups.load(hit, [table[:-1] for table in tables(24, 3)])


def test_copies_of_no_group_begin_if_those_of_another_cannot(
    engine: HybridEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller has no handle to wait for a copy that has begun, or to cancel it."""
    begun: list[str] = []
    for name in ("load", "store"):
        monkeypatch.setattr(AsyncCopier, name, lambda *_: begun.append("a copy"))
    engine.groups.store(engine.prompt, tables(0, 3))
    full, window, states = tables(24, 3)
    absent = [full, window, np.where(states < 0, states, BLOCKS)]
    with pytest.raises(ValueError, match="does not exist"):
        engine.groups.async_store(engine.prompt, absent)
    with engine.groups.match(engine.prompt) as hit, pytest.raises(ValueError, match="does not exist"):
        engine.groups.async_load(hit, absent)
    assert begun == []


def test_a_released_match_loads_nothing(engine: HybridEngine) -> None:
    engine.groups.store(engine.prompt, tables(0, 3))
    hit = engine.groups.match(engine.prompt)
    hit.release()
    assert engine.groups.load(hit, tables(24, 3)) == 0
    with pytest.raises(IncompleteLoadError):
        engine.groups.load(hit, tables(24, 3), strict=True)


def test_pages_on_disk_are_loaded_for_all_groups() -> None:
    with write_through() as daemon, daemon.client(timeout=PATIENCE_S) as client:
        engine = HybridEngine(client)
        engine.groups.store(engine.prompt, tables(0, 3))
        daemon.push_out(client, engine.groups.keys(engine.prompt)[0].keys)
        with engine.groups.match(engine.prompt) as hit:
            assert hit.tokens < hit.available_tokens == TOKENS
            assert engine.groups.load(hit, tables(24, 3), timeout=PATIENCE_S) == TOKENS
        assert same(engine, 0, 24, 3)


def test_pages_on_disk_without_blocks_do_not_fail_a_load() -> None:
    """The caller made the tables for the hit in memory: it is loaded, as if there was no disk."""
    with write_through() as daemon, daemon.client(timeout=PATIENCE_S) as client:
        engine = HybridEngine(client)
        engine.groups.store(engine.prompt, tables(0, 3))
        daemon.push_out(client, engine.groups.keys(engine.prompt)[0].keys)
        with engine.groups.match(engine.prompt) as hit:
            assert hit.tokens == 0 and hit.available_tokens == TOKENS
            assert engine.groups.load(hit, tables(24), timeout=PATIENCE_S) == 0
