"""Loads from a real disk through a real daemon, whose arena is too small for all stored pages."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon_with_disk import FRAMES, is_open, push_out, running_with_disk, stopped_worker, until_written
from pagetier.client import Client, Keys
from running_daemon import RunningDaemon, eventually, namespace

PAGE = 60_000
SPACE = namespace()
LONG_S = 20.0


def some_keys(count: int, prompt: int = 0) -> Keys:
    return SPACE.keys(range(prompt << 20, (prompt << 20) + 16 * count))


def some_pages(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(1, 256, (count, PAGE), dtype=np.uint8)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    with running_with_disk(tmp_path / "disk") as running:
        yield running


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[Client]:
    with daemon.client(timeout=LONG_S) as attached:
        yield attached


def loaded(client: Client, keys: Keys, timeout: float = LONG_S) -> Any:
    """Returns the pages of a prompt that were loaded."""
    out = np.zeros((len(keys), PAGE), np.uint8)
    with client.match(keys) as match:
        count = client.load(match, out, timeout=timeout)
    assert not out[count:].any()
    return out[:count]


def test_evicted_pages_are_loaded_from_disk(daemon: RunningDaemon, client: Client) -> None:
    keys, pages = some_keys(10), some_pages(10)
    assert client.store(keys, pages).stored == 10
    push_out(daemon, client, keys)
    with client.match(keys) as match:
        assert (len(match), match.available_pages) == (0, 10)
    assert np.array_equal(loaded(client, keys), pages)
    with client.match(keys) as match:
        assert len(match) == 10
    assert daemon.header().disk_read == 10


def test_a_prefetch_reads_pages_from_disk(daemon: RunningDaemon, client: Client) -> None:
    keys, pages = some_keys(10), some_pages(10)
    assert client.store(keys, pages).stored == 10
    push_out(daemon, client, keys)
    prefetch = client.prefetch(keys)
    assert eventually(lambda: prefetch.ready, LONG_S)
    assert prefetch.wait(0) == 10
    assert np.array_equal(loaded(client, keys, timeout=0), pages)
    assert client.prefetch(some_keys(3, 99)).wait(LONG_S) == 0, "these pages were never stored"


def test_a_prompt_larger_than_memory_gives_a_shorter_prefix(daemon: RunningDaemon, client: Client) -> None:
    keys, pages = some_keys(40), some_pages(40)
    for first in range(0, 40, 10):
        assert client.store(keys[first : first + 10], pages[first : first + 10]).stored == 10
        until_written(daemon)
    push_out(daemon, client, keys[:10])
    with client.match(keys) as match:
        assert (len(match), match.available_pages) == (0, 40)
    got = loaded(client, keys)
    assert FRAMES / 2 <= len(got) <= FRAMES
    assert np.array_equal(got, pages[: len(got)])
    with client.match(keys) as match:
        assert match.available_pages == 40, "the load lost no page"


def test_many_prompts_by_many_threads(daemon: RunningDaemon, client: Client) -> None:
    prompts = {prompt: (some_keys(6, prompt), some_pages(6, prompt)) for prompt in range(12)}
    for keys, pages in prompts.values():
        assert client.store(keys, pages).stored == 6
        until_written(daemon)
    counts: list[int] = []
    wrong: list[int] = []

    def work(thread: int) -> None:
        dice = np.random.default_rng(thread)
        for prompt in dice.integers(0, 12, 40).tolist():
            keys, pages = prompts[prompt]
            got = loaded(client, keys)
            counts.append(len(got))
            if not np.array_equal(got, pages[: len(got)]):
                wrong.append(prompt)
            client.store(keys, pages)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and len(counts) == 160
    assert sum(counts) > 160, "memory has room for many of the pages at the same time"


def test_while_the_disk_hangs_loads_time_out_and_stores_succeed(daemon: RunningDaemon, client: Client) -> None:
    keys, pages = some_keys(6), some_pages(6)
    assert client.store(keys, pages).stored == 6
    push_out(daemon, client, keys)
    with stopped_worker(daemon):
        for _ in range(2):
            began = time.monotonic()
            assert len(loaded(client, keys, timeout=0.5)) == 0
            assert time.monotonic() - began < 8
            result = client.store(some_keys(2, 7), some_pages(2))
            assert result.refused == 0
    assert eventually(lambda: len(loaded(client, keys, timeout=LONG_S)) == 6, LONG_S)
    assert np.array_equal(loaded(client, keys), pages)


def test_only_one_call_times_out_while_the_daemon_hangs(daemon: RunningDaemon, client: Client) -> None:
    keys, pages = some_keys(6), some_pages(6)
    assert client.store(keys, pages).stored == 6
    push_out(daemon, client, keys)
    daemon.signal(signal.SIGSTOP)
    for least, most in ((5.0, 15.0), (0.0, 4.0)):
        began = time.monotonic()
        assert len(loaded(client, keys, timeout=5.0)) == 0
        assert least <= time.monotonic() - began < most
    daemon.signal(signal.SIGCONT)
    assert eventually(lambda: len(loaded(client, keys)) == 6, LONG_S)
    assert client.store(some_keys(2, 7), some_pages(2)).refused == 0


def test_a_load_is_exact_when_the_worker_is_killed(daemon: RunningDaemon, client: Client) -> None:
    keys, pages = some_keys(6), some_pages(6)
    assert client.store(keys, pages).stored == 6
    push_out(daemon, client, keys)
    with stopped_worker(daemon) as worker:
        prefetch = client.prefetch(keys, timeout=LONG_S)
        os.kill(worker, signal.SIGKILL)
        began = time.monotonic()
        assert prefetch.wait(LONG_S) == 0
        assert time.monotonic() - began < LONG_S / 2
    assert len(loaded(client, keys, timeout=0)) == 0
    assert eventually(lambda: is_open(daemon), LONG_S)
    assert np.array_equal(loaded(client, keys), pages)
