"""Copiers of a daemon that hangs, and stream queues whose thread cannot continue."""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from collections.abc import Iterator
from functools import partial

import pytest

from copying_engine import BLOCK, LAYERS, TOKENS, CopyingEngine, release_arena, slots_of
from eventually import PATIENCE_S, eventually
from pagetier.client import Client, Keys, Outcome, StoreHandle
from pagetier.client.adapters import AsyncCopier, Part, PendingReservation, reserve_async
from pagetier.client.async_copy import store_resources, stream_queue
from pagetier.client.async_copy.stream_queue import StreamQueue
from pagetier.client.attachment import AttachedClient
from pagetier.kernels.config.copy_settings import CopySettings
from pagetier.kernels.host.host_device import HostDevice
from pagetier.kernels.layout.slot_map import slot_map
from pagetier.shm import client_socket
from running_daemon import RunningDaemon
from virtual_clock import VirtualClock

RESERVE_S = 8.0
COPYING = CopySettings(chunk=1 << 20, reserve_timeout=RESERVE_S)
STORES, PAGES = 300, 32  # their requests take 400 KiB: twice what the socket takes


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon("64MiB") as running:
        yield running


def chains_of(engine: CopyingEngine, first: int, count: int) -> list[Keys]:
    return [engine.keys(first + at, PAGES) for at in range(count)]


def many_stores(engine: CopyingEngine, chains: list[Keys]) -> list[StoreHandle]:
    slots = slots_of(PAGES)
    return [engine.copier.store(keys, slots) for keys in chains]


def all_ready(stores: list[StoreHandle]) -> bool:
    return all(store.ready for store in stores)


def reasons(stores: list[StoreHandle]) -> set[str]:
    results = [store.wait(0) for store in stores]
    assert all(result.refused == len(result) for result in results)
    return {result.reason for result in results}


def stored_again(engine: CopyingEngine, prompt: int) -> bool:
    return engine.copier.store(engine.keys(prompt, 2), slots_of(2)).wait(PATIENCE_S).stored == 2


# ---- a daemon that hangs


def test_stores_are_rejected_in_time_and_delay_no_load(
    daemon: RunningDaemon, client: Client, standing_clock: VirtualClock
) -> None:
    engine, gate, short = CopyingEngine(client, 1, COPYING), threading.Event(), slots_of(4)
    known = engine.keys(1, 4)
    assert engine.copier.store(known, short).wait(PATIENCE_S).stored == 4
    copied = engine.copier.store(engine.keys(2, 4), short, after=gate)
    assert eventually(lambda: daemon.header().open_entries == 4)
    client.reserve(engine.keys(9, 1), 4096).abandon()  # its answer comes behind that of the store: the store has it now

    chains, others = chains_of(engine, 1000, STORES), chains_of(engine, 2000, 20)
    daemon.signal(signal.SIGSTOP)
    stores = many_stores(engine, chains)
    gate.set()
    assert copied.wait(PATIENCE_S).stored == 4, "publishing does not wait for requests to be sent"
    load = engine.load(known, short)
    assert load.wait(LAYERS - 1, PATIENCE_S) and load.pages == 4
    standing_clock.passes(0.9 * RESERVE_S)
    assert not any(store.ready for store in stores), "the stores wait until their time is over"
    standing_clock.passes(0.2 * RESERVE_S)
    assert eventually(lambda: all_ready(stores))
    late, silent = "the daemon did not answer in time", "the daemon does not answer"
    # A store that the socket never took ends by its own time, or by the next attempt to send it: whichever is first.
    assert late in reasons(stores) and reasons(stores) <= {late, silent}

    later = many_stores(engine, others)
    assert eventually(lambda: all_ready(later))
    assert reasons(later) == {silent}
    assert client.attached and engine.copier.close(PATIENCE_S)

    daemon.signal(signal.SIGCONT)
    other = CopyingEngine(client, 1, COPYING)
    assert eventually(lambda: stored_again(other, 3), PATIENCE_S)
    assert eventually(lambda: daemon.header().open_entries == 0, PATIENCE_S), "pages that are granted late are released"
    assert daemon.findings() == [] and other.copier.close(PATIENCE_S)


def test_a_daemon_that_hangs_for_a_moment_rejects_nothing(daemon: RunningDaemon, client: Client) -> None:
    """Requests that the socket does not take at once are sent later."""
    engine = CopyingEngine(client, 1, CopySettings(chunk=1 << 20, reserve_timeout=PATIENCE_S))
    daemon.signal(signal.SIGSTOP)
    chains = [engine.keys(at, 1) for at in range(400)]
    slots = slots_of(1)
    stores = [engine.copier.store(keys, slots) for keys in chains]
    linked = client._attachment.linked
    assert linked is not None
    assert eventually(lambda: not client_socket.wait_writable(linked.link._socket, 0)), "the socket takes all at once"
    assert not any(store.ready for store in stores)
    daemon.signal(signal.SIGCONT)
    assert eventually(lambda: all_ready(stores), PATIENCE_S)
    assert all("answer" not in store.wait(0).reason for store in stores)
    assert sum(store.wait(0).stored for store in stores) > 200
    assert engine.copier.close(PATIENCE_S)


def test_sending_waits_only_for_a_chain_that_exceeds_the_socket_buffer(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts: list[float] = []

    def reserve(client: AttachedClient, keys: Keys, sizes: int, part: Part, timeout: float) -> PendingReservation:
        timeouts.append(timeout)
        return reserve_async(client, keys, sizes, part, timeout)

    monkeypatch.setattr(store_resources, "reserve_async", reserve)
    engine, pages = CopyingEngine(client, 1), 2000
    copier = AsyncCopier(client, engine.paged, HostDevice(), COPYING)
    assert copier.store(engine.keys(1, 2), slots_of(2)).wait(PATIENCE_S).stored == 2
    long = copier.store(engine.keys(2, pages), slot_map([0, 1] * pages, pages, TOKENS, BLOCK))
    assert eventually(lambda: len(timeouts) == 2, PATIENCE_S)
    long.cancel()
    assert timeouts[:2] == [0.0, 0.25]
    assert set(timeouts[2:]) <= {0.25}, "a daemon that is late may be waited for again"
    assert copier.close(PATIENCE_S) and client.attached


# ---- a thread that cannot continue


class UnexpectedError(Exception):
    """An error that no device raises."""


def test_an_unexpected_error_ends_all_jobs_and_is_logged(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, slots = CopyingEngine(client, 1, COPYING), slots_of(2)
    assert stored_again(engine, 1)
    seen: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: seen.append(str(args.exc_value)))
    monkeypatch.setattr(stream_queue, "_abandoned", [])  # which otherwise keeps the streams and their threads

    def enqueue(copy: object) -> None:
        raise UnexpectedError("no compiler")

    for lane in (engine.copier._stores, engine.copier._loads):
        monkeypatch.setattr(lane._stream, "enqueue", enqueue)
    load = engine.load(engine.keys(1, 2), slots)
    store = engine.copier.store(engine.keys(2, 2), slots)
    assert not load.wait(0, PATIENCE_S) and load.failed == "UnexpectedError: no compiler"
    result = store.wait(PATIENCE_S)
    assert result.outcomes == [Outcome.REFUSED] * 2 and result.reason == "UnexpectedError: no compiler"
    assert eventually(lambda: len(seen) == 2), "the error is in the log of the process too"
    again = engine.copier.store(engine.keys(3, 2), slots)
    assert again.ready and again.wait(0).reason == "UnexpectedError: no compiler"
    assert engine.load(engine.keys(1, 2), slots).pages == 0
    release_arena(client)


def test_a_stream_outlives_the_copier_while_it_may_copy(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    monkeypatch.setattr(stream_queue, "_abandoned", kept := list[StreamQueue]())
    engine, gate = CopyingEngine(client, 1, COPYING), threading.Event()
    stream = weakref.ref(engine.copier._stores._stream)
    store = engine.copier.store(engine.keys(1, 2), slots_of(2), after=gate)
    assert eventually(partial(_in_flight, engine))
    monkeypatch.setattr(engine.copier._stores, "_complete", _fails)
    engine.copier._stores.wake()
    assert store.wait(PATIENCE_S).reason == "UnexpectedError: in the middle" and not store.ended
    assert eventually(lambda: len(kept) == 1)
    assert not engine.copier.close(0)
    monkeypatch.undo()
    dropped = weakref.ref(engine)
    del engine, store
    assert eventually(lambda: bool(gc.collect()) or dropped() is None)
    assert stream() is kept[0]._stream
    gate.set()
    assert kept[0]._stream.record().wait(PATIENCE_S), "the copy has ended"
    release_arena(client)


def _in_flight(engine: CopyingEngine) -> bool:
    return engine.copier._stores._pieces_in_flight == 1


def _fails() -> None:
    raise UnexpectedError("in the middle")
