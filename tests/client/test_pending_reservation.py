"""Reservations that wait for a response: collected, cancelled, late or lost, and always released in the end."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from child_process import in_child
from eventually import PATIENCE_S, eventually
from fake_daemon import FakeDaemon, Peer
from keyed_pages import in_memory, prompt
from link_fixtures import HOUR_S, never_block
from pagetier.client import Client, Outcome
from pagetier.client.adapters import Part, PendingReservation, reserve_async
from pagetier.shm.protocol import Reserve
from running_daemon import RunningDaemon, namespace
from virtual_clock import VirtualClock, in_main_thread

PAGE = 10_000
pytestmark = pytest.mark.usefixtures("empty_daemon")


@pytest.fixture
def fake() -> Iterator[FakeDaemon]:
    with FakeDaemon() as running:
        yield running


@pytest.fixture
def asking(fake: FakeDaemon) -> Iterator[Client]:
    """Yields a client of a daemon that answers when the test says so."""
    with Client(fake.socket, timeout=PATIENCE_S) as attached:
        assert attached.wait_attached(PATIENCE_S)
        yield attached


def empty(daemon: RunningDaemon) -> bool:
    header = daemon.header()
    return header.used_frames == header.open_entries == 0


def ready(pending: PendingReservation) -> bool:
    return pending.ready


def answer(fake: FakeDaemon, *asked: tuple[Peer, Reserve]) -> None:
    """Answers these requests in one message."""
    asked[0][0].send(*(fake.answer_to(peer, request) for peer, request in asked))


# ---- a real daemon


def test_a_pending_reservation_is_granted(client: Client) -> None:
    pending = reserve_async(client, prompt(0, 3), PAGE)
    assert eventually(lambda: pending.ready), "it becomes ready without a waiting thread"
    with pending.wait(0) as reservation:
        assert reservation.granted.tolist() == [0, 1, 2]
        assert reservation.publish().stored == 3
    assert pending.wait(1).publish().refused == 3, "a reservation is collected once"
    pending.cancel()
    assert in_memory(client, prompt(0, 3)) == 3


def test_wait_returns_the_reservation_at_once_when_it_comes(client: Client) -> None:
    for number in range(50):
        pending = reserve_async(client, prompt(number, 2), 10)
        assert pending.wait(PATIENCE_S).publish().stored == 2


@pytest.mark.parametrize("how", ["dropped", "cancelled", "dropped when ready", "cancelled when ready"])
def test_memory_of_a_cancelled_reservation_is_released(daemon: RunningDaemon, client: Client, how: str) -> None:
    doomed = daemon.header().doomed
    pending = reserve_async(client, prompt(0, 20), PAGE)
    if how.endswith("ready"):
        assert eventually(partial(ready, pending))
        assert not empty(daemon)
    if how.startswith("cancelled"):
        pending.cancel()
        assert client.store(prompt(1, 1), bytes(PAGE)).stored == 1, "a healthy daemon gets further requests"
    else:
        del pending
        gc.collect()
    used = 1 if how.startswith("cancelled") else 0
    assert eventually(lambda: daemon.header().used_frames == used)
    assert daemon.header().doomed == doomed + 20


@pytest.mark.parametrize("how", ["dropped", "abandoned", "left"])
def test_memory_of_an_unpublished_reservation_is_released(daemon: RunningDaemon, client: Client, how: str) -> None:
    reservation = client.reserve(prompt(0, 20), PAGE)
    assert daemon.header().open_entries == 20
    reservation.write(0, bytes(PAGE))
    if how == "abandoned":
        reservation.abandon()
        assert reservation.publish().outcomes == [Outcome.REFUSED] * 20
        assert "abandoned or expired before" in reservation.publish().reason
    if how == "left":
        with reservation:
            pass
        with pytest.raises(ValueError, match="page 0 is not granted"):
            reservation.write(0, bytes(PAGE))
    del reservation
    assert eventually(lambda: empty(daemon))
    assert client.store(prompt(0, 20), bytes(20 * PAGE)).stored == 20


def test_the_result_says_what_became_of_each_page_so_far(client: Client) -> None:
    assert client.store(prompt(0, 1), bytes(PAGE)).stored == 1
    reservation = client.reserve(prompt(0, 5), PAGE)
    present, pending, stored, refused = Outcome.PRESENT, Outcome.PENDING, Outcome.STORED, Outcome.REFUSED
    assert reservation.result.outcomes == [present, pending, pending, pending, pending]
    reservation.publish(np.array([1]))
    reservation.abandon(np.array([3]))
    assert reservation.result.outcomes == [present, stored, pending, refused, pending]
    assert reservation.open.tolist() == [2, 4]
    reservation.keep()
    assert reservation.result.outcomes == [present, stored, refused, refused, refused]
    assert reservation.publish().outcomes == reservation.result.outcomes


def test_many_reservations_without_a_waiting_thread_become_ready(client: Client) -> None:
    """The responses exceed the socket buffers: the background thread reads them."""
    keys = prompt(0, 8192)
    reservations = [reserve_async(client, keys, 1, timeout=PATIENCE_S) for _ in range(40)]
    assert eventually(lambda: all(pending.ready for pending in reservations))
    results = [pending.wait(0).publish() for pending in reservations]
    assert results[0].stored == 256, "the first reservation gets all frames"
    assert all(result.pending == 256 and result.refused == 8192 - 256 for result in results[1:])
    assert client.attached


def test_threads_that_wait_and_threads_that_poll_all_get_their_responses(client: Client) -> None:
    """Some threads read their own responses while the background thread reads others, and none is lost."""

    def work(thread: int) -> None:
        for number in range(1000 * thread, 1000 * thread + 100):
            pending = reserve_async(client, prompt(number, 3), 10)
            with client.reserve(prompt(number + 500, 2), 10, timeout=PATIENCE_S) as reservation:
                assert len(reservation.granted) == 2
            if number % 3:
                pending.wait(PATIENCE_S).publish()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))


def test_a_timeout_of_zero_rejects_all_pages(daemon: RunningDaemon, client: Client) -> None:
    for timeout in (0, 0.0, -1, -0.5, float("-inf")):
        result = client.store(prompt(0, 3), bytes(3 * PAGE), timeout=timeout)
        assert (result.refused, result.reason) == (3, "the timeout left no time to ask")
        reserve_async(client, prompt(0, 3), PAGE, timeout=timeout).cancel()
    assert eventually(lambda: empty(daemon))
    assert client.store(prompt(0, 3), bytes(3 * PAGE), timeout=float("inf")).stored == 3
    with daemon.client(timeout=0) as hurried:
        assert hurried.store(prompt(1, 3), bytes(3 * PAGE)).refused == 3
        assert hurried.store(prompt(1, 3), bytes(3 * PAGE), timeout=PATIENCE_S).stored == 3
        assert in_memory(hurried, prompt(1, 3)) == 3


def test_a_page_whose_other_parts_never_come_expires() -> None:
    """The other parts are never stored: the page is dropped with the parts that were stored."""
    with (
        RunningDaemon("16MiB", "64KiB", "--constant", "store.reservation_timeout=1.5") as daemon,
        daemon.client() as client,
    ):
        # A busy machine may take longer for the two calls than a reservation lasts.
        assert eventually(lambda: client.reserve(prompt(0, 4), PAGE, Part(0, 2)).publish().stored == 4)
        forgotten = client.reserve(prompt(1, 4), PAGE)
        assert in_memory(client, prompt(0, 4)) == 0
        assert eventually(lambda: daemon.header().pages == 0)
        assert daemon.header().used_frames == 4, "a reservation that is still written keeps its frames"
        result = forgotten.publish()
        assert result.outcomes == [Outcome.REFUSED] * 4 and "expired before" in result.reason
        assert eventually(lambda: empty(daemon))


# ---- a daemon that answers when the test does


def test_pages_of_a_late_response_are_abandoned(
    fake: FakeDaemon, asking: Client, standing_clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_block(monkeypatch)
    standing_clock.is_stuck = in_main_thread
    assert asking.store(prompt(0, 3), bytes(3 * PAGE), timeout=HOUR_S).refused == 3
    result = asking.store(prompt(1, 3), bytes(3 * PAGE), timeout=HOUR_S)
    assert (result.refused, result.reason) == (3, "the daemon does not answer"), "only one call waits for it"
    standing_clock.is_stuck = lambda: False
    answer(fake, fake.next())
    assert fake.owner.header().used_frames == 9
    assert eventually(lambda: fake.owner.settle() == 0)
    assert fake.owner.header().used_frames == 0

    pending = reserve_async(asking, prompt(2, 3), PAGE)
    answer(fake, fake.next())
    assert pending.wait(PATIENCE_S).publish().stored == 3


def test_pages_of_a_late_response_are_abandoned_while_the_handle_lives(fake: FakeDaemon, asking: Client) -> None:
    pending = reserve_async(asking, prompt(0, 3), PAGE)
    assert pending.wait(0.05).publish().refused == 3
    answer(fake, fake.next())
    assert eventually(lambda: pending.ready and fake.owner.settle() == 0)
    assert fake.owner.header().used_frames == 0
    assert pending.wait(1).publish().refused == 3


def test_a_reservation_that_was_ready_before_a_fork_is_only_the_parent_s(daemon: RunningDaemon, client: Client) -> None:
    """A forked child that collects, cancels or drops it releases no page of the parent."""
    pending = reserve_async(client, prompt(0, 3), PAGE)
    assert eventually(lambda: pending.ready)

    def child() -> None:
        nonlocal pending
        assert pending.wait(1).publish().refused == 3
        pending.cancel()
        del pending
        gc.collect()

    assert in_child(child) == 0
    assert pending.wait(1).publish().stored == 3


def test_a_late_response_before_one_in_time_delays_no_caller(fake: FakeDaemon, asking: Client) -> None:
    """The background thread may read both responses; the thread that waits for the second one is woken at once."""
    with ThreadPoolExecutor(1) as thread:
        for number in range(200):
            reserve_async(asking, prompt(number, 1), 1)
            late = fake.next()
            waiting = thread.submit(asking.reserve, prompt(1000 + number, 1), 1, timeout=PATIENCE_S)
            in_time = fake.next()
            answer(fake, *((late, in_time) if number % 2 else (in_time, late)))
            with waiting.result(PATIENCE_S) as reservation:
                assert len(reservation.granted) == 1
    fake.owner.settle()
    assert fake.owner.check_integrity() == []


def test_responses_out_of_order_reach_their_requests(fake: FakeDaemon, asking: Client) -> None:
    reservations = [reserve_async(asking, prompt(count, count), 1) for count in range(1, 6)]
    asked = [fake.next() for _ in reservations]
    answer(fake, *reversed(asked))
    assert [len(pending.wait(PATIENCE_S).granted) for pending in reservations] == [1, 2, 3, 4, 5]


def test_a_response_without_a_request_is_ignored(fake: FakeDaemon, asking: Client) -> None:
    pending = reserve_async(asking, prompt(0, 2), 1)
    peer, request = fake.next()
    right = fake.answer_to(peer, request)
    unknown = type(right)(request.number + 1000, right.pages)
    peer.send(unknown, right, right)
    assert pending.wait(PATIENCE_S).publish().stored == 2
    assert asking.attached


def test_open_requests_fail_when_the_daemon_hangs_up(fake: FakeDaemon, asking: Client) -> None:
    pending = reserve_async(asking, prompt(0, 2), 1)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(asking.reserve, prompt(1, 2), 1, timeout=PATIENCE_S)
        fake.next(), fake.next()
        fake.hang_up()
        waited = waiting.result(PATIENCE_S)
    for reservation in (waited, pending.wait(PATIENCE_S)):
        assert reservation.publish().refused == 2
        assert reservation.publish().reason == "the daemon is gone"


def test_a_client_that_attaches_again_reports_the_pages_that_it_writes(fake: FakeDaemon, asking: Client) -> None:
    """The daemon can then release the other pages, which were granted in responses that never came."""
    pending = reserve_async(asking, prompt(0, 3), PAGE)
    answer(fake, fake.next())
    kept = pending.wait(PATIENCE_S)
    done = reserve_async(asking, prompt(1, 2), PAGE)
    answer(fake, fake.next())
    assert done.wait(PATIENCE_S).publish().stored == 2
    reserve_async(asking, prompt(2, 2), PAGE)
    peer, unanswered = fake.next()
    fake.answer_to(peer, unanswered)
    fake.hang_up()
    assert eventually(lambda: len(fake.greetings) == 2)
    first, again = fake.greetings
    assert first.token == again.token and first.serials == b""
    assert sorted(np.frombuffer(again.serials, np.uint64).tolist()) == sorted(kept._serials.tolist())
    fake.owner.keep_only(peer.slot, again.serials)
    assert fake.owner.header().used_frames == (3 + 2) * 3
    assert kept.publish().stored == 3


def test_pages_granted_to_a_dropped_reservation_are_abandoned(fake: FakeDaemon, asking: Client) -> None:
    reserve_async(asking, prompt(0, 3), PAGE)
    gc.collect()
    answer(fake, fake.next())
    assert eventually(lambda: fake.owner.settle() == 0)
    assert fake.owner.header().used_frames == 0


def test_a_long_prompt_of_short_pages_is_one_request(client: Client) -> None:
    """131,072 tokens with one token a page: the daemon grants the pages that have room, in one request."""
    keys = namespace(1).keys(range(131_072))
    with client.reserve(keys, 16, timeout=PATIENCE_S) as reservation:
        assert len(reservation.granted) > 0
