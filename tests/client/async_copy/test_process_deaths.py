"""Copiers of a real daemon when a process dies, exits or forks during copies."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from child_process import in_child, kill, spawn
from copying_engine import LAYERS, CopyingEngine, slots_of
from eventually import PATIENCE_S, eventually
from pagetier.client import Client
from running_daemon import RunningDaemon
from virtual_clock import VirtualClock, in_main_thread

ARENA = "32MiB"


def empty(daemon: RunningDaemon) -> bool:
    return daemon.header().open_entries == 0


def granted(client: Client) -> int:
    """Returns how many pages the client knows to be granted. A response that is not read is lost with the daemon."""
    linked = client._attachment.linked
    return sum(map(len, linked.granted.values())) if linked is not None else 0


def test_closing_the_client_waits_for_copies_in_flight(daemon: RunningDaemon, standing_clock: VirtualClock) -> None:
    with daemon.client() as client:
        engine, gate = CopyingEngine(client, 1), threading.Event()
        keys, slots = engine.keys(7, 6), slots_of(6)
        store = engine.copier.store(keys, slots, gate)
        assert eventually(lambda: not empty(daemon))
        assert not engine.copier.close(0.0)

        def close_waits() -> bool:
            if in_main_thread():
                gate.set()
            return False

        standing_clock.is_stuck = close_waits
    assert store.wait(PATIENCE_S).stored in (0, 6) and store.ended


def test_an_engine_that_is_killed_during_copies_does_not_disturb_others(daemon: RunningDaemon) -> None:
    """Another process stores and loads in the same arena, again and again."""
    with daemon.client() as client:
        mine, slots = CopyingEngine(client, 1), slots_of(24)
        for turn in range(6):
            child = spawn(partial(_store_and_load_forever, daemon.socket, turn))
            for _ in range(3 * (turn + 1)):
                mine.store_and_load(500, slots)
            kill(child)
            mine.store_and_load(501, slots)
            assert eventually(lambda: empty(daemon)), "the pages granted to the dead process are released"
            assert daemon.findings() == []
        for prompt in range(600, 640):
            mine.load_exactly(prompt, slots)
        assert mine.copier.close(PATIENCE_S)


def _store_and_load_forever(socket: Path, seed: int) -> None:
    with Client(socket) as client:
        assert client.wait_attached(PATIENCE_S)
        engine, slots = CopyingEngine(client, seed), slots_of(24)
        while True:
            prompt = 600 + int(np.random.default_rng().integers(40))
            engine.number(prompt)
            store = engine.copier.store(engine.keys(prompt, 24), slots)
            other = engine.load(engine.keys(prompt ^ 1, 8), slots_of(8, 5), after=_Ended(store.wait_ended))
            store.wait(PATIENCE_S)
            other.wait_ended(PATIENCE_S)


class _Ended:
    """An event that completes when something has ended."""

    def __init__(self, waits: Callable[[float], bool]) -> None:
        self._waits = waits

    def wait(self) -> None:
        self._waits(PATIENCE_S)


def test_a_daemon_that_is_killed_in_the_middle_loses_nothing() -> None:
    """Pages that it granted are published while no daemon runs, and found by the next daemon; loads continue."""
    with RunningDaemon("32MiB") as daemon, daemon.client() as client:
        one, other, gate = CopyingEngine(client, 1), CopyingEngine(client, 2), threading.Event()
        there, slots = one.keys(1, 8), slots_of(8)
        one.copier.store(there, slots).wait(PATIENCE_S)
        keys = one.keys(2, 20)
        store = one.copier.store(keys, slots_of(20), gate)
        assert eventually(lambda: granted(client) == 20)
        daemon.kill()
        load = other.load(there, slots)
        assert load.wait(LAYERS - 1, PATIENCE_S) and np.array_equal(other.tokens(slots), one.tokens(slots))
        gate.set()
        assert store.wait(PATIENCE_S).stored == 20
        assert one.copier.store(one.keys(3, 2), slots_of(2)).wait(PATIENCE_S).refused == 2
        daemon.start()
        assert eventually(lambda: client.attached)
        load = other.load(keys, slots_of(20))
        assert load.pages == 20 and load.wait(LAYERS - 1, PATIENCE_S)
        assert np.array_equal(other.tokens(slots_of(20)), one.tokens(slots_of(20)))
        assert eventually(lambda: one.copier.store(one.keys(3, 2), slots_of(2)).wait(PATIENCE_S).stored == 2)
        assert daemon.findings() == []


def test_a_restarted_daemon_keeps_granted_pages_of_copies_in_flight() -> None:
    with RunningDaemon("32MiB") as daemon, daemon.client() as client:
        one, gate = CopyingEngine(client, 1), threading.Event()
        keys = one.keys(2, 20)
        store = one.copier.store(keys, slots_of(20), gate)
        assert eventually(lambda: granted(client) == 20)
        daemon.kill()
        daemon.start()
        assert eventually(lambda: client.attached) and daemon.findings() == []
        assert daemon.header().open_entries == 20
        gate.set()
        assert store.wait(PATIENCE_S).stored == 20 and daemon.findings() == []


def test_a_forked_child_does_not_use_the_copies_of_its_parent(client: Client) -> None:
    engine, gate = CopyingEngine(client, 1), threading.Event()
    keys, slots = engine.keys(8, 4), slots_of(4)
    engine.copier.store(keys, slots).wait(PATIENCE_S)
    store = engine.copier.store(engine.keys(9, 4), slots, gate)
    load = engine.load(keys, slots_of(4, 2), after=gate)

    def child() -> None:
        assert not load.ready(0) and not load.wait(0, 0.01) and not load.make_stream_wait(None, 0, 0)
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
    assert store.wait(PATIENCE_S).stored == 4 and load.wait(LAYERS - 1, PATIENCE_S)


def test_a_fork_during_copies_does_not_hang(client: Client) -> None:
    engine, slots, leave = CopyingEngine(client, 1), slots_of(16), threading.Event()

    def busy() -> None:
        while not leave.is_set():
            engine.copier.store(engine.keys(int(time.monotonic_ns()) % 1000, 16), slots).wait(PATIENCE_S)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for _ in range(10):
            refused = in_child(lambda: os._exit(engine.copier.store(engine.keys(1, 2), slots_of(2)).wait(0).refused))
            assert refused == 2
    finally:
        leave.set()
        thread.join()
