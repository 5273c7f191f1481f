"""Loads leave out what the engine computes faster than disk and fleet deliver it, and measure both."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from eventually import PATIENCE_S
from fake_disk import FakeDiskDaemon
from keyed_pages import pages_of, prompt, store
from pagetier.client import Client
from pagetier.client.load_or_compute import LoadMode, LoadOrCompute
from pagetier.client.tier_speed import LoadTier
from pagetier.shm import clock

PAGE = 5000
KEYS = prompt(0, 10)
PAGES = np.stack(pages_of(KEYS, PAGE))
TOKENS = KEYS.namespace.page_tokens


@pytest.fixture
def daemon() -> Iterator[FakeDiskDaemon]:
    with FakeDiskDaemon() as running:
        yield running


@pytest.fixture
def client(daemon: FakeDiskDaemon) -> Iterator[Client]:
    """Yields a client whose ten pages are on disk, three of them in memory too."""
    with daemon.client(timeout=PATIENCE_S) as attached:
        assert store(attached, KEYS, PAGE).stored == 10
        assert daemon.write_out() == 10
        daemon.bring_in(KEYS[:3])
        yield attached


@contextmanager
def fulfilling(daemon: FakeDiskDaemon) -> Iterator[None]:
    """Reads the pages of the next request."""
    with ThreadPoolExecutor(1) as thread:
        served = thread.submit(lambda: daemon.fulfil(*daemon.next_fetch()))
        yield
        served.result()


def assert_nothing_requested(daemon: FakeDiskDaemon, client: Client) -> None:
    """Asserts that the daemon gets no request before one that is sent now."""
    client.prefetch(KEYS[:1])
    assert daemon.next_fetch()[1].keys == KEYS[:1].data


def measured(*, token_s: float, read_s: float, just_read: bool) -> LoadOrCompute:
    """Returns a rule that knows what a token and a read take. No probe is due if the disk was just read."""
    rule, now = LoadOrCompute(), clock.now()
    for _ in range(8):
        rule.computed(TOKENS, 0.0, TOKENS * token_s)
        began = now + 3600 if just_read else now - read_s - 3600
        rule.ended(rule.sent(LoadTier.DISK, 7 * TOKENS, PATIENCE_S, began), 1.0, began + read_s)
    return rule


def test_a_prefix_that_is_slower_on_disk_is_not_read(daemon: FakeDiskDaemon, client: Client) -> None:
    rule, out = measured(token_s=1e-6, read_s=1.0, just_read=True), np.zeros_like(PAGES)
    with client.match(KEYS) as match:
        assert client.load(match, out, rule=rule) == 3
    assert_nothing_requested(daemon, client)


def test_a_prefix_that_is_faster_on_disk_is_read(daemon: FakeDiskDaemon, client: Client) -> None:
    rule, out = measured(token_s=1.0, read_s=1.0, just_read=True), np.zeros_like(PAGES)
    with client.match(KEYS) as match, fulfilling(daemon):
        assert client.load(match, out, rule=rule) == 10
    assert np.array_equal(out, PAGES)


def test_a_slow_disk_is_measured_by_a_read_for_which_no_load_waits(daemon: FakeDiskDaemon, client: Client) -> None:
    rule, out = measured(token_s=1e-6, read_s=1.0, just_read=False), np.zeros_like(PAGES)
    with client.match(KEYS) as match:
        assert client.load(match, out, rule=rule) == 3, "it does not wait for the answer"
    peer, request = daemon.next_fetch()
    assert request.keys == KEYS[3:].data
    daemon.fulfil(peer, request)


def test_a_load_learns_what_the_disk_takes(daemon: FakeDiskDaemon, client: Client) -> None:
    rule, out = LoadOrCompute(), np.zeros_like(PAGES)
    rule.computed(TOKENS, 0.0, 1e-9)
    with client.match(KEYS) as match, fulfilling(daemon):
        client.load(match, out, rule=rule)
    assert not rule.asks(LoadTier.DISK, range(7 * TOKENS), clock.now()), "computing is faster than any read"


def test_a_setting_leaves_the_disk_alone(daemon: FakeDiskDaemon, client: Client) -> None:
    rule, out = LoadOrCompute({LoadTier.DISK: LoadMode.NEVER}), np.zeros_like(PAGES)
    with client.match(KEYS) as match:
        assert client.load(match, out, rule=rule) == 3
    assert_nothing_requested(daemon, client)
