"""Prefetches: responses that are late, missing, out of order or invalid, and requests while the daemon is late."""

from __future__ import annotations

import gc
import os
import pickle
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from fake_disk import DiskDaemon
from pagetier.client import Client, Keys, Prefetch
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.protocol import Fetched, FetchOutcome, Findings, Reserved
from running_daemon import eventually, namespace

PAGE = 5000
SPACE = namespace()


def some_keys(count: int, prompt: int = 0) -> Keys:
    return SPACE.keys(range(prompt << 20, (prompt << 20) + 16 * count))


def ready(prefetch: Prefetch) -> bool:
    return prefetch.ready


@pytest.fixture
def daemon() -> Iterator[DiskDaemon]:
    with DiskDaemon() as running:
        yield running


@pytest.fixture
def client(daemon: DiskDaemon) -> Iterator[Client]:
    with daemon.client() as attached:
        yield attached


@contextmanager
def locked_by_another_thread(guard: threading.Condition) -> Iterator[None]:
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


def on_disk(daemon: DiskDaemon, client: Client, count: int) -> Keys:
    """Returns the keys of pages that are on disk only."""
    keys = some_keys(count)
    assert client.store(keys, bytes(count * PAGE), timeout=10).stored == count
    assert daemon.write_out() == count
    return keys


def test_a_scheduler_requests_once_and_polls(daemon: DiskDaemon, client: Client) -> None:
    keys = on_disk(daemon, client, 8)
    with client.match(keys) as match:
        assert (len(match), match.available_pages) == (0, 8)
    prefetch = client.prefetch(keys, timeout=30)
    assert not prefetch.ready and prefetch.pages == 8
    assert repr(prefetch) == "<Prefetch of 8 pages, requested>"
    peer, request = daemon.next_fetch()
    assert (request.keys, request.timeout) == (keys.data, 30)
    daemon.fulfil(peer, request)
    assert eventually(lambda: prefetch.ready), "it becomes ready without a waiting thread"
    assert prefetch.wait(0) == prefetch.wait(0) == 8
    assert repr(prefetch) == "<Prefetch of 8 pages, 8 in memory>"
    with client.match(keys) as match:
        assert len(match) == match.available_pages == 8


def test_a_match_reports_its_available_pages(daemon: DiskDaemon, client: Client) -> None:
    keys = on_disk(daemon, client, 8)
    daemon.bring_in(keys[:3])
    with client.match(some_keys(10)) as match:
        assert (len(match), match.available_pages) == (3, 8)
        assert repr(match) == "<Match 3 of 10 pages, 0.0 MiB, 5 more on disk>"
        with client.adopt(pickle.loads(pickle.dumps(match))) as adopted:
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
    daemon: DiskDaemon, client: Client, outcomes: bytes, pages: int
) -> None:
    prefetch = client.prefetch(some_keys(4))
    peer, request = daemon.next_fetch()
    peer.send(Fetched(request.number, outcomes, "a reason"))
    assert prefetch.wait(10) == pages and prefetch.ready


def test_responses_to_other_requests_and_of_other_types_are_ignored(daemon: DiskDaemon, client: Client) -> None:
    prefetch = client.prefetch(some_keys(2))
    peer, request = daemon.next_fetch()
    peer.send(
        Fetched(request.number + 1000, bytes(2)),
        Reserved(request.number, bytes(2), bytes(8), bytes(16)),
        Findings(request.number, []),
    )
    assert prefetch.wait(0.3) == 0 and not prefetch.ready
    peer.send(Fetched(request.number, bytes(2)), Fetched(request.number, bytes(2)))
    assert prefetch.wait(10) == 2
    assert client.attached


def test_responses_out_of_order_reach_their_prefetches(daemon: DiskDaemon, client: Client) -> None:
    prefetches = [client.prefetch(some_keys(count, count)) for count in range(1, 6)]
    asked = [daemon.next_fetch() for _ in prefetches]
    for peer, request in reversed(asked):
        peer.send(Fetched(request.number, bytes(len(request.keys) // KEY_BYTES)))
    assert [prefetch.wait(10) for prefetch in prefetches] == [1, 2, 3, 4, 5]


def test_waiting_ends_at_the_timeout_and_may_be_repeated(daemon: DiskDaemon, client: Client) -> None:
    prefetch = client.prefetch(some_keys(3), timeout=60)
    for timeout in (0, -1, float("nan"), 0.2):
        began = time.monotonic()
        assert prefetch.wait(timeout) == 0 and not prefetch.ready
        assert time.monotonic() - began < 5
    peer, request = daemon.next_fetch()
    timer = threading.Timer(0.2, lambda: peer.send(Fetched(request.number, bytes(3))))
    timer.start()
    assert prefetch.wait(float("inf")) == 3
    timer.join()


def test_without_a_daemon_a_prefetch_is_ready_at_once(daemon: DiskDaemon, client: Client) -> None:
    with Client("/nowhere/pagetier.sock") as alone:
        for prefetch in (alone.prefetch(some_keys(3)), client.prefetch(some_keys(0))):
            assert prefetch.ready and prefetch.wait(10) == 0
    client.close()
    prefetch = client.prefetch(some_keys(3))
    assert prefetch.ready and prefetch.wait(10) == 0


@pytest.mark.parametrize("how", ["closed", "hung up"])
def test_a_prefetch_ends_with_the_connection(daemon: DiskDaemon, client: Client, how: str) -> None:
    prefetch, got = client.prefetch(some_keys(3), timeout=60), []
    waiting = threading.Thread(target=lambda: got.append(prefetch.wait(60)))
    waiting.start()
    daemon.next_fetch()
    began = time.monotonic()
    client.close() if how == "closed" else daemon.hang_up()
    waiting.join()
    assert time.monotonic() - began < 5
    assert got == [0] and prefetch.ready


def test_a_dropped_prefetch_is_forgotten_when_it_is_answered(daemon: DiskDaemon, client: Client) -> None:
    for prompt in range(20):
        client.prefetch(some_keys(3, prompt))
    gc.collect()
    for peer, request in [daemon.next_fetch() for _ in range(20)]:
        daemon.fulfil(peer, request)
    requests = client._attachment.requests
    assert eventually(lambda: not requests._waiting)
    assert not requests._strays and not requests._overdue
    assert client.store(some_keys(2, 100), bytes(2 * PAGE), timeout=10).stored == 2


def test_a_prefetch_is_ready_in_a_forked_child(daemon: DiskDaemon, client: Client) -> None:
    asked, answered = client.prefetch(some_keys(3), timeout=60), client.prefetch(some_keys(3))
    daemon.next_fetch()
    peer, request = daemon.next_fetch()
    peer.send(Fetched(request.number, bytes(3)))
    assert answered.wait(10) == 3
    with locked_by_another_thread(client._attachment.requests._lock):
        child = os.fork()
        if not child:
            done = asked.ready and asked.wait(60) == 0 and answered.ready and answered.wait(60) == 0
            os._exit(0 if done else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not asked.ready and answered.wait(0) == 3


def test_threads_get_the_responses_to_their_own_requests(daemon: DiskDaemon, client: Client) -> None:
    """Some threads wait, some poll, some drop their prefetches and others store: each gets its own response."""
    wrong: list[str] = []

    def work(thread: int) -> None:
        for at in range(60):
            pages = 1 + (thread + at) % 7
            prefetch = client.prefetch(some_keys(pages, thread), timeout=60)
            if at % 3 == 0:
                assert client.reserve(some_keys(1, 500 + thread), 8, timeout=60).publish().refused == 0
            elif (at % 3 == 1 and not eventually(partial(ready, prefetch), 60)) or prefetch.wait(60) != pages:
                wrong.append(f"{prefetch}")

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(6)]
    with answering_at_once(daemon):
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert wrong == []


@contextmanager
def answering_at_once(daemon: DiskDaemon) -> Iterator[None]:
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            with suppress(queue.Empty):
                peer, request = daemon.fetches.get(timeout=0.05)
                peer.send(Fetched(request.number, bytes(len(request.keys) // KEY_BYTES)))

    server = threading.Thread(target=serve)
    server.start()
    yield
    over.set()
    server.join()


# ---- a slow disk and a late daemon


def test_a_slow_disk_rejects_no_store_and_no_other_prefetch(daemon: DiskDaemon, client: Client) -> None:
    slow = client.prefetch(some_keys(3), timeout=60)
    assert slow.wait(0.3) == 0
    assert client.store(some_keys(2, 1), bytes(2 * PAGE), timeout=10).stored == 2
    other = client.prefetch(some_keys(3, 2))
    daemon.next_fetch()
    peer, request = daemon.next_fetch()
    peer.send(Fetched(request.number, bytes(3)))
    assert other.wait(10) == 3
    assert not slow.ready


def test_a_daemon_past_its_time_limit_gets_no_prefetch_until_it_answers(daemon: DiskDaemon, client: Client) -> None:
    late = client.prefetch(some_keys(3), timeout=0.1)
    assert late.wait(0.4) == 0
    other = client.prefetch(some_keys(3, 1), timeout=60)
    assert other.ready and other.wait(60) == 0
    assert not late.ready
    assert client.store(some_keys(2, 2), bytes(2 * PAGE), timeout=10).stored == 2, "the daemon answers again"
    again = client.prefetch(some_keys(3, 1), timeout=60)
    assert not again.ready, "the daemon has answered since"
    peer, request = daemon.next_fetch()
    peer.send(Fetched(request.number, bytes(3)))
    assert late.wait(10) == 3


def test_a_daemon_that_answers_no_store_gets_no_prefetch(daemon: DiskDaemon, client: Client) -> None:
    daemon.hangs = True
    assert client.store(some_keys(2), bytes(2 * PAGE), timeout=0.1).refused == 2
    prefetch = client.prefetch(some_keys(3), timeout=60)
    assert prefetch.ready and prefetch.wait(60) == 0
