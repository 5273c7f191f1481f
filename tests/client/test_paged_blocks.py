"""Blocks of an engine's cache instead of buffers: whole pages are stored and loaded."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
import torch

from copying_engine import BLOCK, BLOCKS, PagedEngine, slots_of
from eventually import PATIENCE_S
from fake_disk import FakeDiskDaemon
from pagetier.client import Client, Keys, Outcome
from pagetier.client.adapters import Blocks, Part
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.page_layout import PageLayout, Shard
from pagetier.kernels.layout.slot_map import SlotMap, slot_map
from pagetier.kernels.layout.transfer import PagedCache
from pagetier.shm._core import KEY_BYTES
from running_daemon import namespace

TOKENS = 12


class Engine(PagedEngine):
    """One process whose pages end within blocks."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, TOKENS, heads=4, width=20)


def request(seed: int, pages: int) -> SlotMap:
    return slots_of(pages, seed, TOKENS)


def test_blocks_come_back_in_other_blocks_of_another_engine(client: Client) -> None:
    one, other = Engine(1), Engine(2)
    keys, there, here = one.keys(1, 10), request(1, 10), request(2, 10)
    assert client.store(keys, Blocks(one.paged, there)).outcomes == [Outcome.STORED] * 10
    assert client.store(keys, Blocks(one.paged, there)).outcomes == [Outcome.PRESENT] * 10
    with client.match(keys) as match:
        assert client.load(match, Blocks(other.paged, here)) == 10
    assert np.array_equal(other.tokens(here), one.tokens(there))


def test_a_load_may_start_after_the_first_page_and_end_inside_a_page(client: Client) -> None:
    one, other = Engine(1), Engine(2)
    keys, there, blocks = one.keys(2, 5), request(1, 5), np.arange(7)
    client.store(keys, Blocks(one.paged, there))
    before = other.tokens(slot_map(blocks, 4, TOKENS, BLOCK))
    # Pages 1 to 4 of the prompt, the first of them at the beginning of the table; tokens 5 to 40 of the table.
    here = slot_map(blocks, 4, TOKENS, BLOCK, tokens=range(5, 40))
    with client.match(keys) as match:
        assert client.load(match, Blocks(other.paged, here), start_page=1) == 4
    after, wanted = other.tokens(here), one.tokens(there)[:, :, TOKENS:]
    assert np.array_equal(after[:, :, 5:40], wanted[:, :, 5:40])
    assert np.array_equal(after[:, :, :5], before[:, :, :5])
    assert np.array_equal(after[:, :, 40:], before[:, :, 40:])


def test_pages_that_are_skipped_are_neither_stored_nor_loaded(client: Client) -> None:
    one, other = Engine(1), Engine(2)
    keys, slots = one.keys(3, 4), request(1, 4)
    result = client.store(keys, Blocks(one.paged, slots.without([False, False, True, False])))
    assert [outcome.name for outcome in result.outcomes] == ["STORED", "STORED", "REFUSED", "STORED"]
    with client.match(keys) as match:
        assert len(match) == 2
    client.store(keys, Blocks(one.paged, slots))
    before = other.tokens(slots)
    with client.match(keys) as match:
        assert client.load(match, Blocks(other.paged, slots.without([True, False, False, True]))) == 4
    after, wanted = other.tokens(slots), one.tokens(slots)
    assert np.array_equal(after[:, :, 12:36], wanted[:, :, 12:36])
    assert np.array_equal(after[:, :, :12], before[:, :, :12]) and np.array_equal(after[:, :, 36:], before[:, :, 36:])


def test_a_partial_page_rejects_the_store(client: Client) -> None:
    engine = Engine(1)
    keys = engine.keys(4, 2)
    with pytest.raises(ValueError, match="page 1 has only some of its tokens"):
        client.store(keys, Blocks(engine.paged, slot_map([1, 2, 3], 2, TOKENS, BLOCK, tokens=range(23))))
    with pytest.raises(ValueError, match="blocks of 3 pages for 2 keys"):
        client.store(keys, Blocks(engine.paged, request(1, 3)))
    with client.match(keys) as match:
        assert len(match) == 0


def test_a_page_may_be_written_token_by_token_before_it_is_published(client: Client) -> None:
    one, other = Engine(1), Engine(2)
    keys, slots = one.keys(5, 2), request(1, 2)
    with client.reserve(keys, one.paged.page.nbytes) as reservation:
        for tokens in (range(7), range(7, 13), range(13, 24)):
            reservation.gather(Blocks(one.paged, slot_map(slots.blocks, 2, TOKENS, BLOCK, tokens=tokens)))
        assert reservation.publish().stored == 2
    with client.match(keys) as match:
        assert client.load(match, Blocks(other.paged, slots)) == 2
    assert np.array_equal(other.tokens(slots), one.tokens(slots))


def test_invalid_arguments_raise_before_anything_is_reserved_or_copied(client: Client) -> None:
    engine = Engine(1)
    keys = engine.keys(6, 2)
    on_gpu = msgspec.structs.replace(engine.paged.cache, device="cuda:0")
    elsewhere = PagedCache(on_gpu, engine.paged.page)
    client.store(keys, Blocks(engine.paged, request(1, 2)))
    before = [one.copy() for one in engine.tensors]
    with client.match(keys) as match:
        for blocks, why in (([1, 2, BLOCKS], f"block {BLOCKS}"), ([1, 2, 1], "block 1 would be loaded twice")):
            with pytest.raises(ValueError, match=why):
                client.load(match, Blocks(engine.paged, slot_map(blocks, 2, TOKENS, BLOCK)))
        with pytest.raises(ValueError, match="on cuda:0"):
            client.load(match, Blocks(elsewhere, request(1, 2)))
        with pytest.raises(ValueError, match="pages of 6 tokens"):
            client.load(match, Blocks(engine.paged, slot_map([1, 2], 2, 6, BLOCK)))
    assert all(map(np.array_equal, before, engine.tensors))
    fresh = engine.keys(7, 2)
    for wrong in (Blocks(elsewhere, request(1, 2)), Blocks(engine.paged, slot_map([1, 2, BLOCKS], 2, TOKENS, BLOCK))):
        with pytest.raises(ValueError):
            client.store(fresh, wrong)
    reservation = client.reserve(fresh, engine.paged.page.nbytes, Part(1, 2))
    with reservation, pytest.raises(ValueError, match="was reserved"):
        reservation.gather(Blocks(engine.paged, request(1, 2)))
    with client.match(fresh) as match:
        assert len(match) == 0


def test_a_namespace_with_another_layout_is_rejected(client: Client) -> None:
    """Their bytes would be taken for something else."""
    engine, slots = Engine(1), request(1, 2)
    for space in (namespace(TOKENS), namespace(TOKENS, layout="other"), namespace(6, layout=engine.paged.page.layout)):
        keys = Keys(space, bytes(64))
        with pytest.raises(ValueError, match=r"set the Namespace.s layout to PageLayout\.layout"):
            client.store(keys, Blocks(engine.paged, slots))
        with client.match(keys) as match, pytest.raises(ValueError, match=r"set the Namespace's layout"):
            client.load(match, Blocks(engine.paged, slots))
    with pytest.raises(ValueError, match="blocks, which determine the part"):
        client.store(engine.keys(9, 2), Blocks(engine.paged, slots), Part(0, 2))


def test_a_tensor_that_gets_other_memory_does_not_change_the_cache(client: Client) -> None:
    tensor = torch.zeros(2, BLOCKS, BLOCK, 4, 20, dtype=torch.int16)
    layout = engine_layouts.kv_first([tensor])
    paged = PagedCache(layout, PageLayout.of(layout, TOKENS))
    space = namespace(TOKENS, layout=paged.page.layout)
    keys, slots = space.keys(range(TOKENS * 2)), request(1, 2)
    tensor.data = torch.ones(1, dtype=torch.int16)
    assert client.store(keys, Blocks(paged, slots)).stored == 2
    with client.match(keys) as match:
        assert client.load(match, Blocks(paged, slots)) == 2


def test_pages_of_another_size_are_a_miss(client: Client) -> None:
    engine = Engine(1)
    keys = engine.keys(8, 3)
    sizes = [engine.paged.page.nbytes, engine.paged.page.nbytes + 1, engine.paged.page.nbytes]
    with client.reserve(keys, sizes) as reservation:
        reservation.publish()
    with client.match(keys) as match:
        assert client.load(match, Blocks(engine.paged, request(1, 3))) == 1


def test_without_a_daemon_stores_are_rejected_and_loads_miss() -> None:
    engine = Engine(1)
    keys = engine.keys(1, 2)
    with Client("/nowhere/pagetier.sock", timeout=0.1) as client:
        assert client.store(keys, Blocks(engine.paged, request(1, 2))).refused == 2
        with client.match(keys) as match:
            assert client.load(match, Blocks(engine.paged, request(1, 2))) == 0


def test_more_ranks_than_parts_are_rejected() -> None:
    layout = engine_layouts.latents([np.zeros((BLOCKS, BLOCK, 6), np.uint8)])
    paged = PagedCache(layout, PageLayout.of(layout, TOKENS), Shard(rank=3, ranks=64))
    with Client("/nowhere/pagetier.sock") as client, pytest.raises(ValueError, match="part 3 of 64"):
        client.store(Keys(namespace(TOKENS, layout=paged.page.layout), bytes(KEY_BYTES)), Blocks(paged, request(1, 1)))


def test_a_load_into_blocks_reads_pages_from_disk() -> None:
    one, other = Engine(1), Engine(2)
    keys, slots = one.keys(1, 6), request(1, 6)
    with FakeDiskDaemon() as daemon, daemon.client(timeout=PATIENCE_S) as client:
        assert client.store(keys, Blocks(one.paged, slots)).stored == 6
        assert daemon.write_out() == 6
        daemon.bring_in(keys[:2])
        with client.match(keys) as match:
            assert (len(match), match.available_pages) == (2, 6)
            with ThreadPoolExecutor(1) as thread:
                loaded = thread.submit(client.load, match, Blocks(other.paged, slots))
                daemon.fulfil(*daemon.next_fetch())
                assert loaded.result() == 6
    assert np.array_equal(other.tokens(slots), one.tokens(slots))
