"""Loads from a real disk through a real daemon, whose arena is too small for all stored pages."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from disk_daemon import FRAMES, DiskDaemon, write_through
from eventually import PATIENCE_S, eventually
from keyed_pages import assert_exact, in_memory, prompt, store
from pagetier.client import Client, Keys
from rescued_wait import HOUR_S, rescued_by

PAGE = 60_000
KEYS = prompt(0, 6)


@pytest.fixture(scope="module")
def running() -> Iterator[DiskDaemon]:
    with write_through() as running:
        yield running


@pytest.fixture
def daemon(running: DiskDaemon) -> DiskDaemon:
    """Returns the module's daemon without pages."""
    running.drop_all_pages()
    return running


def loaded(client: Client, keys: Keys, timeout: float = PATIENCE_S) -> int:
    """Loads a prompt, asserts that its pages are exact and no others were written, and returns their number."""
    out = np.zeros((len(keys), PAGE), np.uint8)
    with client.match(keys) as match:
        count = client.load(match, out, timeout=timeout)
    assert_exact(keys, out[:count])
    assert not out[count:].any()
    return count


def stored_on_disk(daemon: DiskDaemon, client: Client, keys: Keys = KEYS) -> None:
    """Stores pages that are on disk only afterwards."""
    assert store(client, keys, PAGE, timeout=PATIENCE_S).stored == len(keys)
    daemon.push_out(client, keys)


def test_evicted_pages_are_loaded_from_disk(daemon: DiskDaemon, client: Client) -> None:
    keys = prompt(0, 10)
    stored_on_disk(daemon, client, keys)
    before = daemon.header().disk_read
    with client.match(keys) as match:
        assert (len(match), match.available_pages) == (0, 10)
    assert loaded(client, keys) == in_memory(client, keys) == 10
    assert daemon.header().disk_read == before + 10


def test_a_prefetch_reads_pages_from_disk(daemon: DiskDaemon, client: Client) -> None:
    stored_on_disk(daemon, client)
    prefetch = client.prefetch(KEYS)
    assert eventually(lambda: prefetch.ready)
    assert prefetch.wait(0) == 6
    assert loaded(client, KEYS, timeout=0) == 6
    assert client.prefetch(prompt(99, 3)).wait(PATIENCE_S) == 0, "these pages were never stored"


def test_a_prompt_larger_than_memory_gives_a_shorter_prefix(daemon: DiskDaemon, client: Client) -> None:
    keys = prompt(0, 40)
    for first in range(0, 40, 10):
        assert store(client, keys[first : first + 10], PAGE, timeout=PATIENCE_S).stored == 10
        daemon.until_written()
    daemon.push_out(client, keys[:10])
    with client.match(keys) as match:
        assert (len(match), match.available_pages) == (0, 40)
    assert FRAMES / 2 <= loaded(client, keys) <= FRAMES
    with client.match(keys) as match:
        assert match.available_pages == 40, "the load lost no page"


def test_many_prompts_by_many_threads(daemon: DiskDaemon, client: Client) -> None:
    for number in range(12):
        assert store(client, prompt(number, 6), PAGE, timeout=PATIENCE_S).stored == 6
        daemon.until_written()

    def work(seed: int) -> int:
        count = 0
        for number in np.random.default_rng(seed).integers(0, 12, 40).tolist():
            count += loaded(client, prompt(number, 6))
            store(client, prompt(number, 6), PAGE, timeout=PATIENCE_S)
        return count

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(work, range(4))) > 160, "memory has room for many of the pages at the same time"


def test_while_the_disk_hangs_loads_time_out_and_stores_succeed(daemon: DiskDaemon, client: Client) -> None:
    stored_on_disk(daemon, client)
    with daemon.stopped_worker():
        for _ in range(2):
            assert loaded(client, KEYS, timeout=0.5) == 0
            assert store(client, prompt(7, 2), PAGE, timeout=PATIENCE_S).refused == 0
    assert eventually(lambda: loaded(client, KEYS) == 6)


def test_only_one_call_times_out_while_the_daemon_hangs(daemon: DiskDaemon, client: Client) -> None:
    stored_on_disk(daemon, client)
    daemon.signal(signal.SIGSTOP)
    with rescued_by(partial(daemon.signal, signal.SIGCONT)):
        for timeout in (2.0, HOUR_S):
            assert loaded(client, KEYS, timeout=timeout) == 0
    daemon.signal(signal.SIGCONT)
    assert eventually(lambda: loaded(client, KEYS) == 6)
    assert store(client, prompt(7, 2), PAGE, timeout=PATIENCE_S).refused == 0


def test_a_load_is_exact_when_the_worker_is_killed(daemon: DiskDaemon, client: Client) -> None:
    stored_on_disk(daemon, client)
    with daemon.stopped_worker() as worker:
        prefetch = client.prefetch(KEYS, timeout=HOUR_S)
        os.kill(worker, signal.SIGKILL)
        assert prefetch.wait(PATIENCE_S) == 0 and prefetch.ready
    assert loaded(client, KEYS, timeout=0) == 0
    assert eventually(lambda: loaded(client, KEYS) == 6), "the response may come before the tier is shown as down"
