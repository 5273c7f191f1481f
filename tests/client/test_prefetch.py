"""Prefetches: responses that are late, missing, out of order or invalid, and requests while the daemon is late."""

from __future__ import annotations

import gc
import pickle
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from child_process import in_child
from eventually import PATIENCE_S, eventually
from fake_daemon import Peer
from fake_disk import FakeDiskDaemon
from keyed_pages import in_memory, prompt, store
from link_fixtures import never_block
from pagetier.client import Client, Keys
from pagetier.client.adapters import Prefetch, adopt
from pagetier.client.daemon_requests import RESPONSE_S
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.protocol import Fetch, Fetched, FetchOutcome, Findings, Reserved
from rescued_wait import HOUR_S
from virtual_clock import VirtualClock, in_main_thread

PAGE = 5000


def ready(prefetch: Prefetch) -> bool:
    return prefetch.ready


def answer(peer: Peer, request: Fetch) -> None:
    """Reports that all requested pages are in memory."""
    peer.send(Fetched(request.number, bytes(len(request.keys) // KEY_BYTES)))


@pytest.fixture
def daemon() -> Iterator[FakeDiskDaemon]:
    with FakeDiskDaemon() as running:
        yield running


@contextmanager
def locked_by_another_thread(guard: threading.RLock) -> Iterator[None]:
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        with guard:
            taken.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    yield
    over.set()
    thread.join()


def on_disk(daemon: FakeDiskDaemon, client: Client, count: int) -> Keys:
    """Returns the keys of pages that are on disk only."""
    keys = prompt(0, count)
    assert store(client, keys, PAGE).stored == count
    assert daemon.write_out() == count
    return keys


def test_a_scheduler_requests_once_and_polls(daemon: FakeDiskDaemon, client: Client) -> None:
    keys = on_disk(daemon, client, 8)
    with client.match(keys) as match:
        assert (len(match), match.available_pages) == (0, 8)
    prefetch = client.prefetch(keys, timeout=PATIENCE_S)
    assert not prefetch.ready and prefetch.pages == 8
    assert repr(prefetch) == "<Prefetch of 8 pages, requested>"
    peer, request = daemon.next_fetch()
    assert (request.keys, request.timeout) == (keys.data, PATIENCE_S)
    daemon.fulfil(peer, request)
    assert eventually(lambda: prefetch.ready), "it becomes ready without a waiting thread"
    assert prefetch.wait(0) == prefetch.wait(0) == 8
    assert repr(prefetch) == "<Prefetch of 8 pages, 8 in memory>"
    assert in_memory(client, keys) == 8


def test_a_match_reports_its_available_pages(daemon: FakeDiskDaemon, client: Client) -> None:
    keys = on_disk(daemon, client, 8)
    daemon.bring_in(keys[:3])
    with client.match(prompt(0, 10)) as match:
        assert (len(match), match.available_pages) == (3, 8)
        assert repr(match) == "<Match 3 of 10 pages, 0.0 MiB, 5 more on disk>"
        with adopt(client.session, pickle.loads(pickle.dumps(match))) as adopted:
            assert len(adopted) == adopted.available_pages == 3
            assert "disk" not in repr(adopted)


@pytest.mark.parametrize(
    ("outcomes", "pages"),
    [
        (bytes([FetchOutcome.IN_MEMORY] * 4), 4),
        (bytes([FetchOutcome.IN_MEMORY, FetchOutcome.IN_MEMORY, FetchOutcome.PENDING, FetchOutcome.IN_MEMORY]), 2),
        (bytes([FetchOutcome.ABSENT] * 4), 0),
        (bytes([FetchOutcome.IN_MEMORY] * 9), 4),
        (bytes([FetchOutcome.IN_MEMORY]), 1),
        (b"", 0),
        (bytes([255] * 4), 0),
    ],
)
def test_a_prefetch_counts_the_leading_pages_in_memory(
    daemon: FakeDiskDaemon, client: Client, outcomes: bytes, pages: int
) -> None:
    prefetch = client.prefetch(prompt(0, 4))
    peer, request = daemon.next_fetch()
    peer.send(Fetched(request.number, outcomes, "a reason"))
    assert prefetch.wait(PATIENCE_S) == pages and prefetch.ready


def test_responses_to_other_requests_and_of_other_types_are_ignored(daemon: FakeDiskDaemon, client: Client) -> None:
    prefetch, other = client.prefetch(prompt(0, 2)), client.prefetch(prompt(1, 1))
    peer, request = daemon.next_fetch()
    peer.send(
        Fetched(request.number + 1000, bytes(2)),
        Reserved(request.number, bytes(32)),
        Findings(request.number, []),
    )
    answer(*daemon.next_fetch())
    assert other.wait(PATIENCE_S) == 1 and not prefetch.ready
    peer.send(Fetched(request.number, bytes(2)), Fetched(request.number, bytes(2)))
    assert prefetch.wait(PATIENCE_S) == 2
    assert client.attached


def test_responses_out_of_order_reach_their_prefetches(daemon: FakeDiskDaemon, client: Client) -> None:
    prefetches = [client.prefetch(prompt(count, count)) for count in range(1, 6)]
    asked = [daemon.next_fetch() for _ in prefetches]
    for peer, request in reversed(asked):
        answer(peer, request)
    assert [prefetch.wait(PATIENCE_S) for prefetch in prefetches] == [1, 2, 3, 4, 5]


def test_waiting_ends_at_the_timeout_and_may_be_repeated(
    daemon: FakeDiskDaemon, client: Client, standing_clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_block(monkeypatch)
    prefetch = client.prefetch(prompt(0, 3), timeout=PATIENCE_S)
    standing_clock.is_stuck = in_main_thread
    for timeout in (0, -1, float("nan"), 0.2, 3600.0):
        began = standing_clock.now
        assert prefetch.wait(timeout) == 0 and not prefetch.ready
        assert standing_clock.now - began == pytest.approx(max(0.0, timeout))
    asked = [daemon.next_fetch()]

    def waits() -> bool:
        if asked and in_main_thread():
            answer(*asked.pop())
        return False

    standing_clock.is_stuck = waits
    assert prefetch.wait(float("inf")) == 3


def test_without_a_daemon_a_prefetch_is_ready_at_once(daemon: FakeDiskDaemon, client: Client) -> None:
    with Client("/nowhere/pagetier.sock") as alone:
        for prefetch in (alone.prefetch(prompt(0, 3)), client.prefetch(prompt(0, 0))):
            assert prefetch.ready and prefetch.wait(PATIENCE_S) == 0
    client.close()
    prefetch = client.prefetch(prompt(0, 3))
    assert prefetch.ready and prefetch.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("how", ["closed", "hung up"])
def test_a_prefetch_ends_with_the_connection(daemon: FakeDiskDaemon, client: Client, how: str) -> None:
    prefetch = client.prefetch(prompt(0, 3), timeout=PATIENCE_S)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(prefetch.wait, 60)
        daemon.next_fetch()
        client.close() if how == "closed" else daemon.hang_up()
        assert waiting.result(PATIENCE_S) == 0 and prefetch.ready


def test_a_dropped_prefetch_is_forgotten_when_it_is_answered(daemon: FakeDiskDaemon, client: Client) -> None:
    for number in range(20):
        client.prefetch(prompt(number, 3))
    gc.collect()
    for peer, request in [daemon.next_fetch() for _ in range(20)]:
        daemon.fulfil(peer, request)
    requests = client._attachment.requests
    assert eventually(lambda: not requests._waiting)
    assert not requests._strays and not requests._overdue
    assert store(client, prompt(100, 2), PAGE).stored == 2


def test_a_prefetch_is_ready_in_a_forked_child(daemon: FakeDiskDaemon, client: Client) -> None:
    asked, answered = client.prefetch(prompt(0, 3), timeout=PATIENCE_S), client.prefetch(prompt(0, 3))
    daemon.next_fetch()
    answer(*daemon.next_fetch())
    assert answered.wait(PATIENCE_S) == 3

    def child() -> None:
        assert asked.ready and asked.wait(60) == 0 and answered.ready and answered.wait(60) == 0

    with locked_by_another_thread(client._attachment.requests._lock):
        assert in_child(child) == 0
    assert not asked.ready and answered.wait(0) == 3


def test_threads_get_the_responses_to_their_own_requests(daemon: FakeDiskDaemon, client: Client) -> None:
    """Some threads wait, some poll, some drop their prefetches and others store: each gets its own response."""

    def work(thread: int) -> None:
        for at in range(60):
            pages = 1 + (thread + at) % 7
            prefetch = client.prefetch(prompt(thread, pages), timeout=PATIENCE_S)
            if at % 3 == 0:
                assert client.reserve(prompt(500 + thread, 1), 8, timeout=PATIENCE_S).publish().refused == 0
                continue
            assert at % 3 == 2 or eventually(partial(ready, prefetch), 60)
            assert prefetch.wait(60) == pages

    with answering_at_once(daemon), ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))


@contextmanager
def answering_at_once(daemon: FakeDiskDaemon) -> Iterator[None]:
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            with suppress(queue.Empty):
                answer(*daemon.fetches.get(timeout=0.05))

    server = threading.Thread(target=serve)
    server.start()
    yield
    over.set()
    server.join()


# ---- a slow disk and a late daemon


def test_a_slow_disk_rejects_no_store_and_no_other_prefetch(
    daemon: FakeDiskDaemon, client: Client, standing_clock: VirtualClock
) -> None:
    slow = client.prefetch(prompt(0, 3), timeout=HOUR_S)
    standing_clock.passes(HOUR_S)
    assert store(client, prompt(1, 2), PAGE).stored == 2
    other = client.prefetch(prompt(2, 3))
    daemon.next_fetch()
    answer(*daemon.next_fetch())
    assert other.wait(PATIENCE_S) == 3
    assert not slow.ready


def test_a_daemon_past_its_time_limit_gets_no_prefetch_until_it_answers(
    daemon: FakeDiskDaemon, client: Client, standing_clock: VirtualClock
) -> None:
    late = client.prefetch(prompt(0, 3), timeout=HOUR_S)
    standing_clock.passes(HOUR_S + 0.9 * RESPONSE_S)
    assert not client.prefetch(prompt(3, 3), timeout=PATIENCE_S).ready, "the daemon is not late yet"
    standing_clock.passes(0.2 * RESPONSE_S)
    other = client.prefetch(prompt(1, 3), timeout=PATIENCE_S)
    assert other.ready and other.wait(60) == 0
    assert not late.ready
    assert store(client, prompt(2, 2), PAGE).stored == 2, "the daemon answers again"
    again = client.prefetch(prompt(1, 3), timeout=PATIENCE_S)
    assert not again.ready, "the daemon has answered since"
    answer(*daemon.next_fetch())
    assert late.wait(PATIENCE_S) == 3


def test_a_daemon_that_answers_no_store_gets_no_prefetch(
    daemon: FakeDiskDaemon, client: Client, standing_clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_block(monkeypatch)
    daemon.hangs, standing_clock.is_stuck = True, in_main_thread
    assert store(client, prompt(0, 2), PAGE, timeout=HOUR_S).refused == 2
    prefetch = client.prefetch(prompt(0, 3), timeout=PATIENCE_S)
    assert prefetch.ready and prefetch.wait(60) == 0
