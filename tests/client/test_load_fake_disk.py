"""Loads of pages on disk, from a daemon that reads them when the test says so: exact bytes, in time, and a prefix."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import Empty
from typing import Any

import numpy as np
import pytest

from child_process import in_child
from eventually import PATIENCE_S
from fake_daemon import Peer
from fake_disk import FakeDiskDaemon
from keyed_pages import pages_of, prompt, store
from link_fixtures import never_block
from pagetier.client import Client, prompt_reader
from pagetier.client.adapters import adopt
from pagetier.client.daemon_requests import RESPONSE_S
from pagetier.shm._core import KEY_BYTES, TierFlag
from pagetier.shm.protocol import Fetch, Fetched, FetchOutcome
from rescued_wait import HOUR_S
from virtual_clock import VirtualClock, in_main_thread

PAGE = 5000
KEYS = prompt(0, 10)
PAGES = np.stack(pages_of(KEYS, PAGE))


def assert_prefix(pages: Any, count: int) -> None:
    """Asserts that the first `count` pages were loaded, and that nothing after them was written."""
    assert np.array_equal(pages[:count], PAGES[:count])
    assert not pages[count:].any()


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
def answering(daemon: FakeDiskDaemon, answer: Callable[[Peer, Fetch], None]) -> Iterator[list[Fetch]]:
    """Answers the next prefetch request with `answer`; the request is in the list when the block ends."""
    asked: list[Fetch] = []

    def serve() -> None:
        peer, request = daemon.next_fetch()
        asked.append(request)
        answer(peer, request)

    thread = threading.Thread(target=serve)
    thread.start()
    yield asked
    thread.join()


def loaded(
    daemon: FakeDiskDaemon, client: Client, answer: Callable[[Peer, Fetch], None], timeout: float = PATIENCE_S
) -> int:
    """Loads the prompt while its request is answered, asserts that a prefix was loaded, and returns its length."""
    out = np.zeros_like(PAGES)
    with client.match(KEYS) as match, answering(daemon, answer):
        count = client.load(match, out, timeout=timeout)
    assert_prefix(out, count)
    return count


def partly(daemon: FakeDiskDaemon, pages: int) -> Callable[[Peer, Fetch], None]:
    """Returns an answer that reads `pages` pages and reports the others as still being read."""

    def answer(peer: Peer, request: Fetch) -> None:
        outcomes = daemon.bring_in(request.keys[: KEY_BYTES * pages])
        peer.send(
            Fetched(request.number, outcomes + bytes([FetchOutcome.PENDING]) * (len(request.keys) // KEY_BYTES - pages))
        )

    return answer


def test_pinned_pages_and_pages_on_disk_are_loaded(daemon: FakeDiskDaemon, client: Client) -> None:
    out = np.zeros_like(PAGES)
    with client.match(KEYS) as match:
        assert (len(match), match.available_pages) == (3, 10)
        with answering(daemon, daemon.fulfil) as asked:
            assert client.load(match, out) == 10
    assert np.array_equal(out, PAGES)
    assert asked[0].keys == KEYS[3:].data
    assert PATIENCE_S - 1 < asked[0].timeout < PATIENCE_S, "the daemon has time to say that the disk was too slow"
    assert daemon.write_out() == 10, "no page is pinned any more"


def test_a_prompt_that_is_only_on_disk_is_loaded(daemon: FakeDiskDaemon, client: Client) -> None:
    daemon.write_out()
    for out in (np.zeros_like(PAGES), [bytearray(PAGE) for _ in range(10)]):
        with client.match(KEYS) as match, answering(daemon, daemon.fulfil):
            assert (len(match), match.available_pages) == (0, 10)
            assert client.load(match, out) == 10
        assert np.array_equal(np.array([np.frombuffer(page, np.uint8) for page in out]), PAGES)
        assert daemon.write_out() == 10


@pytest.mark.parametrize("first", range(11))
@pytest.mark.parametrize("form", ["one", "list"])
def test_a_load_starts_at_any_page(daemon: FakeDiskDaemon, client: Client, first: int, form: str) -> None:
    out = np.zeros_like(PAGES[first:])
    given: Any = out if form == "one" else list(out)
    with client.match(KEYS) as match:
        if first == 10:
            assert client.load(match, given, first) == 0
            assert client.load(match, bytearray(PAGE), 11) == 0
            assert daemon.fetches.empty()
        else:
            with answering(daemon, daemon.fulfil):
                assert client.load(match, given, first) == 10 - first
    assert np.array_equal(out, PAGES[first:])


@pytest.mark.parametrize("form", ["one", "list"])
@pytest.mark.parametrize("room", [0, 2, 3, 5])
def test_a_load_requests_only_pages_that_have_room(
    daemon: FakeDiskDaemon, client: Client, room: int, form: str
) -> None:
    out = np.zeros((room, PAGE), np.uint8)
    given: Any = out if form == "one" else list(out)
    with client.match(KEYS) as match:
        if room <= 3:
            assert client.load(match, given) == room
            assert daemon.fetches.empty()
        else:
            with answering(daemon, daemon.fulfil) as asked:
                assert client.load(match, given) == room
            assert asked[0].keys == KEYS[3:room].data
    assert np.array_equal(out, PAGES[:room])


def test_buffers_of_another_size_are_a_miss(daemon: FakeDiskDaemon, client: Client) -> None:
    with client.match(KEYS) as match:
        assert client.load(match, bytearray(PAGE * 10 + 1)) == 0
        assert daemon.fetches.empty()
        sizes = [PAGE] * 6 + [PAGE - 1] + [PAGE] * 3
        with answering(daemon, daemon.fulfil):
            assert client.load(match, [bytearray(size) for size in sizes]) == 6
        daemon.write_out()
        with answering(daemon, daemon.fulfil):
            assert client.load(match, [bytearray(PAGE), bytearray(PAGE + 1), *([bytearray(PAGE)] * 8)]) == 1
    with pytest.raises(TypeError), client.match(KEYS) as match:
        client.load(match, bytes(PAGE * 10), timeout=0)


def test_a_load_returns_a_prefix_when_some_pages_are_late(daemon: FakeDiskDaemon, client: Client) -> None:
    assert loaded(daemon, client, partly(daemon, 4)) == 7


@pytest.mark.parametrize(("lost", "left"), [("one page", 5), ("all pages", 3)])
def test_a_load_ends_at_a_page_that_is_lost_on_disk_meanwhile(
    daemon: FakeDiskDaemon, client: Client, lost: str, left: int
) -> None:
    def answer(peer: Peer, request: Fetch) -> None:
        daemon.owner.disk_damaged(KEYS[5]) if lost == "one page" else daemon.owner.flush(-1, TierFlag.BOTH)
        daemon.fulfil(peer, request)

    assert loaded(daemon, client, answer) == left


@pytest.mark.parametrize("outcomes", [b"", bytes(7), bytes(100), bytes([255] * 7)])
def test_a_load_does_not_trust_the_outcomes_in_the_response(
    daemon: FakeDiskDaemon, client: Client, outcomes: bytes
) -> None:
    def answer(peer: Peer, request: Fetch) -> None:
        peer.send(Fetched(request.number, outcomes, "nonsense"))

    assert loaded(daemon, client, answer) == 3


def test_a_load_without_a_response_times_out_and_the_next_does_not_wait(
    daemon: FakeDiskDaemon, client: Client, standing_clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_block(monkeypatch)
    out = np.zeros_like(PAGES)
    with client.match(KEYS) as match:
        standing_clock.is_stuck = in_main_thread
        for took in (HOUR_S, 0.0):
            began = standing_clock.now
            assert client.load(match, out, timeout=HOUR_S) == 3
            assert standing_clock.now - began == pytest.approx(took)
            standing_clock.passes(RESPONSE_S)  # what a healthy daemon takes to report that the disk was too slow
        standing_clock.is_stuck = lambda: False
        assert store(client, prompt(1, 2), PAGE, timeout=PATIENCE_S).stored == 2
        assert daemon.fetches.qsize() == 1, "the second load asked, too"  # the daemon has read all before the store
        with answering(daemon, lambda peer, request: daemon.fulfil(*daemon.next_fetch())):
            assert client.load(match, out) == 10
    assert np.array_equal(out, PAGES)


def test_pages_that_reach_memory_without_a_response_are_loaded(
    daemon: FakeDiskDaemon, client: Client, standing_clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_block(monkeypatch)
    there = threading.Event()
    standing_clock.is_stuck = lambda: in_main_thread() and there.is_set()

    def answer(peer: Peer, request: Fetch) -> None:
        daemon.bring_in(request.keys)
        there.set()

    assert loaded(daemon, client, answer, timeout=HOUR_S) == 10


@pytest.mark.parametrize("timeout", [0, -1, float("-inf")])
def test_a_load_without_a_timeout_returns_pages_in_memory(
    daemon: FakeDiskDaemon, client: Client, timeout: float
) -> None:
    out = np.zeros_like(PAGES)
    with client.match(KEYS) as match:
        assert client.load(match, out, timeout=timeout) == 3
    peer, request = daemon.next_fetch()
    assert request.timeout == 0
    daemon.fulfil(peer, request)
    with client.match(KEYS) as match:
        assert client.load(match, out, timeout=timeout) == 10, "the next load finds them in memory"
    assert np.array_equal(out, PAGES)


def test_adopted_and_released_matches_send_no_request(daemon: FakeDiskDaemon, client: Client) -> None:
    out = np.zeros_like(PAGES)
    with client.match(KEYS) as match, adopt(client.session, pickle.loads(pickle.dumps(match))) as adopted:
        assert client.load(adopted, out) == 3
    assert client.load(match, out) == 0
    assert daemon.fetches.empty()


@pytest.mark.parametrize("how", ["close", "hang up"])
def test_a_load_ends_when_the_daemon_or_the_client_closes(daemon: FakeDiskDaemon, client: Client, how: str) -> None:
    def answer(peer: Peer, request: Fetch) -> None:
        client.close() if how == "close" else daemon.hang_up()

    count = loaded(daemon, client, answer, timeout=HOUR_S)
    assert count == 3 or (how == "close" and count == 0), "the client was closed before anything was copied"


def test_a_load_in_a_forked_child_is_a_miss(daemon: FakeDiskDaemon, client: Client) -> None:
    with client.match(KEYS) as match:

        def child() -> None:
            assert client.load(match, np.zeros_like(PAGES), timeout=0.1) == 0

        assert in_child(child) == 0
        with answering(daemon, daemon.fulfil):
            assert client.load(match, np.zeros_like(PAGES)) == 10


@pytest.mark.parametrize("left", [0, 1, 3])
def test_the_second_match_of_a_load_may_find_less(
    daemon: FakeDiskDaemon, client: Client, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = client.match(KEYS[:left])
    monkeypatch.setattr(prompt_reader, "rematched", lambda match, keys: found)
    assert loaded(daemon, client, daemon.fulfil) == 3


def test_many_threads_load_the_same_pages(daemon: FakeDiskDaemon, client: Client) -> None:
    """Pages leave memory and return during the loads."""

    def work(_: int) -> int:
        out = np.zeros_like(PAGES)
        with client.match(KEYS) as match:
            count = client.load(match, out)
        assert_prefix(out, count)
        return count

    with ThreadPoolExecutor(4) as threads:
        loads = [threads.submit(work, number) for number in range(100)]
        while not all(load.done() for load in loads) or not daemon.fetches.empty():
            try:
                daemon.fulfil(*daemon.fetches.get(timeout=0.001))
            except Empty:
                daemon.write_out()
    assert max(load.result() for load in loads) == 10
