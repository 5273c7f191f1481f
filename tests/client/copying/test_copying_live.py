"""Copiers over the host path and a real daemon: content, layers, deaths of engines and daemons, forks."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dying import in_child, kill, spawn
from pagetier.client import Client, Copier, Keys, Load, Namespace, Outcome
from pagetier.kernels import caches
from pagetier.kernels.host_device import HostDevice
from pagetier.kernels.page import PageOrder, Shard
from pagetier.kernels.slots import SlotMap, slot_map
from pagetier.kernels.thresholds import CopySettings
from pagetier.kernels.transfer import PagedCache
from running import RunningDaemon, eventually

TOKENS, BLOCK, LAYERS, BLOCKS = 16, 8, 4, 64
LONG_S = 30.0
COPYING = CopySettings(chunk=1 << 20)


class Engine:
    """A cache of four layers, K and V first, pages of 256 KiB; content by its seed."""

    def __init__(self, client: Client, seed: int, settings: CopySettings = COPYING) -> None:
        shape = (LAYERS, 2, BLOCKS, BLOCK, 8, 128)
        self.tensors = list(np.random.default_rng(seed).integers(0, 2**16, shape, dtype=np.uint16))
        layout = caches.kv_first(self.tensors)
        self.client = client
        self.paged = PagedCache(layout, PageOrder.of(layout, TOKENS))
        self.copier = Copier(client, self.paged, HostDevice(), settings)

    def keys(self, prompt: int, pages: int) -> Keys:
        space = Namespace(model="test", dtype="uint16", page_tokens=TOKENS, layout=self.paged.page.layout)
        return space.keys(range(prompt << 16, (prompt << 16) + TOKENS * pages))

    def load(self, keys: Keys, slots: SlotMap, **options: Any) -> Load:
        with self.client.match(keys) as match:
            return self.copier.load(match, slots, **options)

    def tokens(self, slots: SlotMap) -> Any:
        places = slots.pages[0, 0] + np.arange(len(slots) * TOKENS)
        return np.stack([one[:, slots.blocks[places // BLOCK], places % BLOCK] for one in self.tensors])

    def number(self, prompt: int) -> None:
        """All of the cache says of which prompt it is."""
        for tensor in self.tensors:
            tensor[:] = prompt

    def says(self, slots: SlotMap, prompt: int) -> bool:
        return bool((self.tokens(slots) == prompt).all())


def slots_of(pages: int, seed: int = 1) -> SlotMap:
    """In blocks at random."""
    blocks = np.random.default_rng(seed).permutation(BLOCKS)[: pages * TOKENS // BLOCK]
    return slot_map(blocks, pages, TOKENS, BLOCK)


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon("32MiB") as running:
        yield running


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[Client]:
    with daemon.client() as attached:
        yield attached


def empty(daemon: RunningDaemon) -> bool:
    return daemon.header()["open_entries"] == 0


def test_pages_come_back_in_other_blocks_of_another_engine(client: Client) -> None:
    one, other = Engine(client, 1), Engine(client, 2)
    keys, there, here = one.keys(1, 20), slots_of(20), slots_of(20, 2)
    assert one.copier.store(keys, there).wait(LONG_S).outcomes == [Outcome.STORED] * 20
    assert one.copier.store(keys, there).wait(LONG_S).outcomes == [Outcome.PRESENT] * 20
    load = other.load(keys, here)
    assert load.pages == 20
    assert all(load.wait(layer, LONG_S) for layer in range(LAYERS)) and load.wait_ended(LONG_S)
    assert np.array_equal(other.tokens(here), one.tokens(there))
    assert one.copier.close(LONG_S) and other.copier.close(LONG_S)


def test_layers_are_waited_for_one_by_one(client: Client) -> None:
    one, other = Engine(client, 1), Engine(client, 2)
    keys, slots, gate = one.keys(2, 8), slots_of(8), threading.Event()
    one.copier.store(keys, slots).wait(LONG_S)
    load = other.load(keys, slots, after=gate)
    assert not load.wait(0, 0.02) and not load.ready(0)
    gate.set()
    for layer in range(LAYERS):
        assert load.wait(layer, LONG_S) and load.ready(layer)
        assert np.array_equal(other.tokens(slots)[layer], one.tokens(slots)[layer])


def test_calls_of_an_engine_wait_for_nobody(client: Client, daemon: RunningDaemon) -> None:
    """Neither for an engine's event that does not come, nor for a daemon that is stopped."""
    engine, gate = Engine(client, 1), threading.Event()
    keys = engine.keys(3, 4)
    engine.copier.store(keys, slots_of(4)).wait(LONG_S)
    daemon.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        store = engine.copier.store(engine.keys(4, 4), slots_of(4), gate)
        load = engine.load(keys, slots_of(4, 2), after=gate)
        assert not store.ready and not load.ready(0) and store.wait(0).pending == 4
        store.cancel()
        load.cancel()
        assert time.monotonic() - began < 0.5
        assert store.wait(LONG_S).refused == 4
    finally:
        daemon.signal(signal.SIGCONT)
    gate.set()
    assert load.wait_ended(LONG_S) and eventually(lambda: empty(daemon))


def test_who_drops_what_goes_on_stops_nothing(client: Client) -> None:
    one, gate = Engine(client, 1), threading.Event()
    keys, slots = one.keys(5, 6), slots_of(6)
    one.copier.store(keys, slots, gate)
    gc.collect()
    gate.set()
    assert one.copier.close(LONG_S)
    with client.match(keys) as match:
        assert len(match) == 6
    assert one.copier.store(keys, slots).wait(0).refused == 6
    assert one.load(keys, slots).pages == 0


def test_a_copier_that_is_dropped_leaves_no_thread(client: Client) -> None:
    before = set(threading.enumerate())
    engine = Engine(client, 1)
    threads = set(threading.enumerate()) - before
    assert len(threads) == 4
    store = engine.copier.store(engine.keys(6, 6), slots_of(6))
    del engine
    gc.collect()
    assert store.wait(LONG_S).stored == 6
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive()


def test_the_client_s_end_waits_for_what_is_in_flight(daemon: RunningDaemon) -> None:
    with daemon.client() as client:
        engine, gate = Engine(client, 1), threading.Event()
        keys, slots = engine.keys(7, 6), slots_of(6)
        store = engine.copier.store(keys, slots, gate)
        assert eventually(lambda: not empty(daemon))
        assert not engine.copier.close(0.05)
        threading.Timer(0.2, gate.set).start()
    assert store.wait(LONG_S).stored in (0, 6) and store.ended


def test_without_a_daemon_all_is_refused_and_missed() -> None:
    with Client("/nowhere/pagetier.sock", deadline=0.1) as client:
        engine = Engine(client, 1)
        store = engine.copier.store(engine.keys(1, 2), slots_of(2))
        assert store.wait(LONG_S).refused == 2 and "no daemon" in store.wait(0).reason
        load = engine.load(engine.keys(1, 2), slots_of(2))
        assert load.pages == 0 and load.ready(0) and load.wait(1, 0) and load.ended and not load.failed


def test_threads_share_a_copier(client: Client) -> None:
    one, other = Engine(client, 1), Engine(client, 2)
    failures: list[str] = []

    def work(number: int) -> None:
        blocks = range(16 * number, 16 * number + 16)
        slots = slot_map(blocks, 8, TOKENS, BLOCK)
        for turn in range(8):
            keys = one.keys(100 + 10 * number + turn, 8)
            if one.copier.store(keys, slots).wait(LONG_S).stored != 8:
                failures.append("store")
            load = other.load(keys, slots)
            whole = load.wait(LAYERS - 1, LONG_S) and np.array_equal(other.tokens(slots), one.tokens(slots))
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


def test_replicas_store_their_shares_of_a_page(client: Client) -> None:
    """Four ranks of a model with two heads: two have the same head, and each stores half of its tokens."""
    whole = np.random.default_rng(3).integers(0, 2**16, (2, BLOCKS, BLOCK, 2, 64), dtype=np.uint16)
    copiers, keys, slots = [], None, slots_of(3)
    for rank in range(4):
        head = np.ascontiguousarray(whole[:, :, :, rank // 2 : rank // 2 + 1])
        layout = caches.kv_first([head])
        order = PageOrder.of_model(layout, TOKENS, heads=2, layers=1)
        paged = PagedCache(layout, order, Shard(rank=rank, ranks=4))
        space = Namespace(model="test", dtype="uint16", page_tokens=TOKENS, layout=order.layout)
        keys = space.keys(range(TOKENS * 3))
        copiers.append((head, Copier(client, paged, HostDevice())))
    assert keys is not None
    for rank, (_, copier) in enumerate(copiers):
        with client.match(keys) as match:
            assert len(match) == 0, f"readable before rank {rank} has stored"
        assert copier.store(keys, slots).wait(LONG_S).stored == 3
    for rank, (head, copier) in enumerate(copiers):
        head[:] = 0
        with client.match(keys) as match:
            load = copier.load(match, slots)
        assert load.wait(0, LONG_S)
        assert np.array_equal(head[:, slots.blocks], whole[:, slots.blocks, :, rank // 2 : rank // 2 + 1])


# ---- deaths


def test_an_engine_that_is_killed_in_the_middle_of_copies_harms_nobody(daemon: RunningDaemon) -> None:
    """While another process stores and loads in the same arena, again and again."""
    with daemon.client() as client:
        mine, slots = Engine(client, 1), slots_of(24)
        for turn in range(6):
            child = spawn(partial(_stores_and_loads_for_ever, daemon.socket, turn))
            ends = time.monotonic() + 0.15 + 0.07 * turn
            while time.monotonic() < ends:
                _stored_and_loaded(mine, 500, slots)
            kill(child)
            _stored_and_loaded(mine, 501, slots)
            assert eventually(lambda: empty(daemon)), "what the dead was granted comes back"
            assert daemon.findings() == []
        for prompt in range(600, 640):
            _says_its_number_if_it_is_there(mine, prompt)
        assert mine.copier.close(LONG_S)


def _stored_and_loaded(engine: Engine, prompt: int, slots: SlotMap) -> None:
    """Of no other content than it should."""
    keys = engine.keys(prompt, len(slots))
    engine.number(prompt)
    engine.copier.store(keys, slots).wait(LONG_S)
    engine.number(0)
    load = engine.load(keys, slots)
    assert load.wait(LAYERS - 1, LONG_S) and load.wait_ended(LONG_S)
    if load.pages:
        assert engine.says(slot_map(slots.blocks, load.pages, TOKENS, BLOCK), prompt)


def _says_its_number_if_it_is_there(engine: Engine, prompt: int) -> None:
    load = engine.load(engine.keys(prompt, 24), slots_of(24))
    assert load.wait(LAYERS - 1, LONG_S) and load.wait_ended(LONG_S)
    if load.pages:
        assert engine.says(slot_map(slots_of(24).blocks, load.pages, TOKENS, BLOCK), prompt)


def _stores_and_loads_for_ever(socket: Path, seed: int) -> None:
    with Client(socket) as client:
        assert client.wait_attached(LONG_S)
        engine, slots = Engine(client, seed), slots_of(24)
        while True:
            prompt = 600 + int(np.random.default_rng().integers(40))
            engine.number(prompt)
            store = engine.copier.store(engine.keys(prompt, 24), slots)
            other = engine.load(engine.keys(prompt ^ 1, 8), slots_of(8, 5), after=_Ended(store.wait_ended))
            store.wait(LONG_S)
            other.wait_ended(LONG_S)


class _Ended:
    """An event: something has ended."""

    def __init__(self, waits: Callable[[float], bool]) -> None:
        self._waits = waits

    def wait(self) -> None:
        self._waits(LONG_S)


def test_a_daemon_that_is_killed_in_the_middle_loses_nothing() -> None:
    """What it granted is published while it is away, and found by the next one; loads go on."""
    with RunningDaemon("32MiB") as daemon, daemon.client() as client:
        one, other, gate = Engine(client, 1), Engine(client, 2), threading.Event()
        there, slots = one.keys(1, 8), slots_of(8)
        one.copier.store(there, slots).wait(LONG_S)
        keys = one.keys(2, 20)
        store = one.copier.store(keys, slots_of(20), gate)
        assert eventually(lambda: not empty(daemon))
        daemon.kill()
        load = other.load(there, slots)
        assert load.wait(LAYERS - 1, LONG_S) and np.array_equal(other.tokens(slots), one.tokens(slots))
        gate.set()
        assert store.wait(LONG_S).stored == 20
        assert one.copier.store(one.keys(3, 2), slots_of(2)).wait(LONG_S).refused == 2
        daemon.start()
        assert eventually(lambda: client.attached)
        load = other.load(keys, slots_of(20))
        assert load.pages == 20 and load.wait(LAYERS - 1, LONG_S)
        assert np.array_equal(other.tokens(slots_of(20)), one.tokens(slots_of(20)))
        assert eventually(lambda: one.copier.store(one.keys(3, 2), slots_of(2)).wait(LONG_S).stored == 2)
        assert daemon.findings() == []


def test_a_daemon_that_starts_again_leaves_grants_in_flight_alone() -> None:
    with RunningDaemon("32MiB") as daemon, daemon.client() as client:
        one, gate = Engine(client, 1), threading.Event()
        keys = one.keys(2, 20)
        store = one.copier.store(keys, slots_of(20), gate)
        assert eventually(lambda: not empty(daemon))
        daemon.kill()
        daemon.start()
        assert eventually(lambda: client.attached) and daemon.findings() == []
        assert daemon.header()["open_entries"] == 20
        gate.set()
        assert store.wait(LONG_S).stored == 20 and daemon.findings() == []


def test_a_forked_child_uses_nothing_of_its_parent_s(client: Client) -> None:
    engine, gate = Engine(client, 1), threading.Event()
    keys, slots = engine.keys(8, 4), slots_of(4)
    engine.copier.store(keys, slots).wait(LONG_S)
    store = engine.copier.store(engine.keys(9, 4), slots, gate)
    load = engine.load(keys, slots_of(4, 2), after=gate)

    def child() -> None:
        assert not load.ready(0) and not load.wait(0, 0.01) and not load.hold(None, 0, 0)
        assert store.ready and store.wait(0).refused == 4
        store.cancel()
        load.cancel()
        assert engine.copier.store(keys, slots).wait(0).refused == 4
        with client.match(keys) as match:
            missed = engine.copier.load(match, slots)
        assert missed.pages == 0 and missed.ready(0)
        assert engine.copier.close(0)

    assert in_child(child) == 0
    gate.set()
    assert store.wait(LONG_S).stored == 4 and load.wait(LAYERS - 1, LONG_S)


def test_a_fork_in_the_middle_of_everything_does_not_hang(client: Client) -> None:
    engine, slots, leave = Engine(client, 1), slots_of(16), threading.Event()

    def busy() -> None:
        while not leave.is_set():
            engine.copier.store(engine.keys(int(time.monotonic_ns()) % 1000, 16), slots).wait(LONG_S)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for _ in range(10):
            refused = in_child(lambda: os._exit(engine.copier.store(engine.keys(1, 2), slots_of(2)).wait(0).refused))
            assert refused == 2
    finally:
        leave.set()
        thread.join()
