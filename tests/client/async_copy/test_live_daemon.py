"""Copiers on the host path with a real daemon: content, layers, and what waits for what."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable
from itertools import count

import numpy as np
import pytest

from copying_engine import BLOCK, BLOCKS, LAYERS, TOKENS, CopyingEngine, slots_of
from eventually import PATIENCE_S, eventually
from interrupted_calls import each_interrupt
from pagetier.client import Client, Namespace, Outcome, StoreHandle
from pagetier.client.adapters import AsyncCopier
from pagetier.kernels.host.host_device import HostDevice
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.page_layout import PageLayout, Shard
from pagetier.kernels.layout.slot_map import slot_map
from pagetier.kernels.layout.transfer import PagedCache
from running_daemon import RunningDaemon
from virtual_clock import VirtualClock, in_main_thread

ARENA = "32MiB"


def empty(daemon: RunningDaemon) -> bool:
    return daemon.header().open_entries == 0


def test_pages_come_back_in_other_blocks_of_another_engine(client: Client) -> None:
    one, other = CopyingEngine(client, 1), CopyingEngine(client, 2)
    keys, there, here = one.keys(1, 20), slots_of(20), slots_of(20, 2)
    assert one.copier.store(keys, there).wait(PATIENCE_S).outcomes == [Outcome.STORED] * 20
    assert one.copier.store(keys, there).wait(PATIENCE_S).outcomes == [Outcome.PRESENT] * 20
    load = other.load(keys, here)
    assert load.pages == 20
    assert all(load.wait(layer, PATIENCE_S) for layer in range(LAYERS)) and load.wait_ended(PATIENCE_S)
    assert np.array_equal(other.tokens(here), one.tokens(there))
    assert one.copier.close(PATIENCE_S) and other.copier.close(PATIENCE_S)


def test_layers_are_waited_for_one_by_one(client: Client) -> None:
    one, other = CopyingEngine(client, 1), CopyingEngine(client, 2)
    keys, slots, gate = one.keys(2, 8), slots_of(8), threading.Event()
    one.copier.store(keys, slots).wait(PATIENCE_S)
    load = other.load(keys, slots, after=gate)
    assert not load.wait(0, 0.02) and not load.ready(0)
    gate.set()
    for layer in range(LAYERS):
        assert load.wait(layer, PATIENCE_S) and load.ready(layer)
        assert np.array_equal(other.tokens(slots)[layer], one.tokens(slots)[layer])


def test_calls_of_an_engine_never_wait(client: Client, daemon: RunningDaemon, standing_clock: VirtualClock) -> None:
    """Calls wait neither for an engine's event that does not come, nor for a daemon that is stopped."""
    engine, gate = CopyingEngine(client, 1), threading.Event()
    keys = engine.keys(3, 4)
    engine.copier.store(keys, slots_of(4)).wait(PATIENCE_S)
    daemon.signal(signal.SIGSTOP)
    try:
        began, standing_clock.is_stuck = standing_clock.now, in_main_thread
        store = engine.copier.store(engine.keys(4, 4), slots_of(4), gate)
        load = engine.load(keys, slots_of(4, 2), after=gate)
        assert not store.ready and not load.ready(0) and store.wait(0).pending == 4
        store.cancel()
        load.cancel()
        assert standing_clock.now == began, "a call waited"
        standing_clock.is_stuck = lambda: False
        assert store.wait(PATIENCE_S).refused == 4
    finally:
        daemon.signal(signal.SIGCONT)
    gate.set()
    assert load.wait_ended(PATIENCE_S) and eventually(lambda: empty(daemon))


def test_dropping_a_handle_does_not_cancel_its_copies(client: Client) -> None:
    one, gate = CopyingEngine(client, 1), threading.Event()
    keys, slots = one.keys(5, 6), slots_of(6)
    one.copier.store(keys, slots, gate)
    gc.collect()
    gate.set()
    assert one.copier.close(PATIENCE_S)
    with client.match(keys) as match:
        assert len(match) == 6
    assert one.copier.store(keys, slots).wait(0).refused == 6
    assert one.load(keys, slots).pages == 0


def copying_threads() -> set[threading.Thread]:
    """Returns the threads of copiers and their streams; those of clients come and go."""
    return {thread for thread in threading.enumerate() if thread.name.startswith(("pagetier-store", "pagetier-load"))}


def test_a_copier_that_is_dropped_leaves_no_thread(client: Client) -> None:
    before = copying_threads()
    engine = CopyingEngine(client, 1)
    threads = copying_threads() - before
    assert len(threads) == 4
    store = engine.copier.store(engine.keys(6, 6), slots_of(6))
    del engine
    gc.collect()
    assert store.wait(PATIENCE_S).stored == 6
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_without_a_daemon_stores_are_rejected_and_loads_miss() -> None:
    with Client("/nowhere/pagetier.sock", timeout=0.1) as client:
        engine = CopyingEngine(client, 1)
        store = engine.copier.store(engine.keys(1, 2), slots_of(2))
        assert store.wait(PATIENCE_S).refused == 2 and "no daemon" in store.wait(0).reason
        load = engine.load(engine.keys(1, 2), slots_of(2))
        assert load.pages == 0 and load.ready(0) and load.wait(1, 0) and load.ended and not load.failed


def test_threads_share_a_copier(client: Client) -> None:
    one, other = CopyingEngine(client, 1), CopyingEngine(client, 2)
    failures: list[str] = []

    def work(number: int) -> None:
        blocks = range(16 * number, 16 * number + 16)
        slots = slot_map(blocks, 8, TOKENS, BLOCK)
        for turn in range(8):
            keys = one.keys(100 + 10 * number + turn, 8)
            if one.copier.store(keys, slots).wait(PATIENCE_S).stored != 8:
                failures.append("store")
            load = other.load(keys, slots)
            whole = load.wait(LAYERS - 1, PATIENCE_S) and np.array_equal(other.tokens(slots), one.tokens(slots))
            if load.pages and not whole:
                failures.append("load")
            for tensor in one.tensors:
                tensor[:, list(blocks)] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_ranks_with_the_same_head_share_the_tokens_of_a_page(client: Client) -> None:
    """Of four ranks of a model with two heads, two have the same head, and each of them stores half of its tokens."""
    whole = np.random.default_rng(3).integers(0, 2**16, (2, BLOCKS, BLOCK, 2, 64), dtype=np.uint16)
    copiers, keys, slots = [], None, slots_of(3)
    for rank in range(4):
        head = np.ascontiguousarray(whole[:, :, :, rank // 2 : rank // 2 + 1])
        layout = engine_layouts.kv_first([head])
        page_layout = PageLayout.of_model(layout, TOKENS, heads=2, layers=1)
        paged = PagedCache(layout, page_layout, Shard(rank=rank, ranks=4))
        space = Namespace(model="test", dtype="uint16", page_tokens=TOKENS, layout=page_layout.layout)
        keys = space.keys(range(TOKENS * 3))
        copiers.append((head, AsyncCopier(client, paged, HostDevice())))
    assert keys is not None
    for rank, (_, copier) in enumerate(copiers):
        with client.match(keys) as match:
            assert len(match) == 0, f"readable before rank {rank} has stored"
        assert copier.store(keys, slots).wait(PATIENCE_S).stored == 3
    for rank, (head, copier) in enumerate(copiers):
        head[:] = 0
        with client.match(keys) as match:
            load = copier.load(match, slots)
        assert load.wait(0, PATIENCE_S)
        assert np.array_equal(head[:, slots.blocks], whole[:, slots.blocks, :, rank // 2 : rank // 2 + 1])


@pytest.mark.parametrize("wait", [StoreHandle.wait, StoreHandle.cancel], ids=["wait", "cancel"])
def test_an_interrupt_in_a_call_of_a_store_ends_no_later_one(
    client: Client, daemon: RunningDaemon, wait: Callable[..., object]
) -> None:
    engine = CopyingEngine(client, 1)

    def call() -> None:
        store = engine.copier.store(engine.keys(next(numbers), 1), slots_of(1))
        wait(store, *([PATIENCE_S] if wait is StoreHandle.wait else []))

    numbers = count(1)
    for place in each_interrupt(call):
        later = engine.copier.store(engine.keys(next(numbers), 1), slots_of(1)).wait(PATIENCE_S)
        assert later.stored + later.present == 1, place  # other tests have stored some of these pages
    assert engine.copier.close(PATIENCE_S)
    assert eventually(lambda: empty(daemon))


@pytest.mark.parametrize("after", [None, threading.Event()], ids=["at once", "after an event"])
def test_an_interrupt_in_a_load_leaves_no_arena_and_no_page(
    daemon: RunningDaemon, after: threading.Event | None
) -> None:
    with daemon.client() as client:
        engine, session = CopyingEngine(client, 1), client.session
        keys, slots = engine.keys(1, 2), slots_of(2)
        assert session is not None and engine.copier.store(keys, slots).wait(PATIENCE_S).refused == 0
        if after is not None:
            after.set()
        with client.match(keys) as match:
            assert len(match) == 2
            places = sum(1 for _ in each_interrupt(lambda: engine.copier.load(match, slots, after=after).cancel()))
        assert places > 50 and engine.copier.close(PATIENCE_S)
        assert session.retire(), "an interrupted load retains the arena"
