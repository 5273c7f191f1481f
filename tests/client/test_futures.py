"""Room on its way: promised, given up, late, lost, and never left lying."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from fake_daemon import Peer, PretendedDaemon
from pagetier.client import Client, Keys, Outcome, Part, PendingReservation
from pagetier.shm.protocol import Reserve
from running_daemon import RunningDaemon, eventually, namespace

PAGE = 10_000
SPACE = namespace()


def some_keys(count: int, prompt: int = 0) -> Keys:
    return SPACE.keys(range(prompt << 20, (prompt << 20) + 16 * count))


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon() as running:
        yield running


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[Client]:
    with daemon.client() as attached:
        yield attached


@pytest.fixture
def pretended() -> Iterator[PretendedDaemon]:
    with PretendedDaemon() as running:
        yield running


@pytest.fixture
def asking(pretended: PretendedDaemon) -> Iterator[Client]:
    """A client of a daemon that answers when the test does."""
    with Client(pretended.socket) as attached:
        assert attached.wait_attached(5)
        yield attached


def empty(daemon: RunningDaemon) -> bool:
    header = daemon.header()
    return header["used_frames"] == header["open_entries"] == 0


def ready(promise: PendingReservation) -> bool:
    return promise.ready


def answer(pretended: PretendedDaemon, *asked: tuple[Peer, Reserve]) -> None:
    """Answers these requests in one piece."""
    asked[0][0].send(*(pretended.answer_to(peer, request) for peer, request in asked))


# ---- a real daemon


def test_a_promise_is_kept(client: Client) -> None:
    promise = client.reserve_async(some_keys(3), PAGE)
    assert eventually(lambda: promise.ready), "nobody has to wait for it"
    with promise.wait(0) as reservation:
        assert reservation.granted.tolist() == [0, 1, 2]
        assert reservation.publish().stored == 3
    assert promise.wait(1).publish().refused == 3, "it is collected once"
    promise.cancel()
    assert len(client.match(some_keys(3))) == 3


def test_a_promise_that_is_waited_for_at_once(client: Client) -> None:
    for prompt in range(50):
        promise = client.reserve_async(some_keys(2, prompt), 10)
        assert promise.wait(5).publish().stored == 2


@pytest.mark.parametrize("how", ["dropped", "cancelled", "dropped when ready", "cancelled when ready"])
def test_room_that_is_not_wanted_any_more_comes_back(daemon: RunningDaemon, client: Client, how: str) -> None:
    promise = client.reserve_async(some_keys(20), PAGE)
    if how.endswith("ready"):
        assert eventually(partial(ready, promise))
        assert not empty(daemon)
    if how.startswith("cancelled"):
        promise.cancel()
        assert client.store(some_keys(1, 1), bytes(PAGE)).stored == 1, "a daemon that is well is asked on"
    else:
        del promise
        gc.collect()
    used = 1 if how.startswith("cancelled") else 0
    assert eventually(lambda: daemon.header()["used_frames"] == used)
    assert daemon.header()["doomed"] == 20


@pytest.mark.parametrize("how", ["dropped", "abandoned", "left"])
def test_room_that_is_not_filled_comes_back(daemon: RunningDaemon, client: Client, how: str) -> None:
    reservation = client.reserve(some_keys(20), PAGE)
    assert daemon.header()["open_entries"] == 20
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
    assert client.store(some_keys(20), bytes(20 * PAGE)).stored == 20


def test_many_promises_that_nobody_waits_for(client: Client) -> None:
    """Their answers are more than sockets hold: somebody reads them all the same."""
    keys = some_keys(8192)
    promises = [client.reserve_async(keys, 1, timeout=5) for _ in range(40)]
    assert eventually(lambda: all(promise.ready for promise in promises))
    results = [promise.wait(0).publish() for promise in promises]
    assert results[0].stored == 256, "all frames"
    assert all(result.pending == 256 and result.refused == 8192 - 256 for result in results[1:])
    assert client.attached


def test_promises_and_waits_side_by_side(client: Client) -> None:
    """Some read their own answers while the keeper reads others: nobody misses his."""
    slow: list[float] = []

    def work(thread: int) -> None:
        for prompt in range(100):
            began = time.monotonic()
            promise = client.reserve_async(some_keys(3, 1000 * thread + prompt), 10)
            with client.reserve(some_keys(2, 1000 * thread + prompt + 500), 10, timeout=20) as reservation:
                assert len(reservation.granted) == 2
            if prompt % 3:
                promise.wait(20).publish()
            slow.append(time.monotonic() - began)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(slow) == 400
    assert max(slow) < 5, "somebody's answer was read, and he was not told"


def test_no_patience_is_no_harm(daemon: RunningDaemon, client: Client) -> None:
    for deadline in (0, 0.0, -1, -0.5, float("-inf"), float("nan")):
        began = time.monotonic()
        result = client.store(some_keys(3), bytes(3 * PAGE), timeout=deadline)
        assert (result.refused, result.reason) == (3, "the timeout left no time to ask")
        assert time.monotonic() - began < 2
        client.reserve_async(some_keys(3), PAGE, timeout=deadline).cancel()
    assert eventually(lambda: empty(daemon))
    assert client.store(some_keys(3), bytes(3 * PAGE), timeout=float("inf")).stored == 3


def test_a_client_without_patience(daemon: RunningDaemon) -> None:
    with daemon.client(timeout=0) as client:
        assert client.store(some_keys(3), bytes(3 * PAGE)).refused == 3
        assert client.store(some_keys(3), bytes(3 * PAGE), timeout=5).stored == 3
        assert len(client.match(some_keys(3))) == 3


def test_part_of_a_page_that_nobody_finishes_expires() -> None:
    """The other parts never come; then the page goes, and what was stored of it with it."""
    with RunningDaemon("16MiB", "64KiB", "--store-expiry", "1500ms") as daemon, daemon.client() as client:
        half = client.reserve(some_keys(4), PAGE, Part(0, 2))
        assert half.publish().stored == 4
        forgotten = client.reserve(some_keys(4, 1), PAGE)
        assert len(client.match(some_keys(4))) == 0
        assert eventually(lambda: daemon.header()["pages"] == 0)
        assert daemon.header()["used_frames"] == 4, "who still writes keeps the frames"
        result = forgotten.publish()
        assert result.outcomes == [Outcome.REFUSED] * 4 and "expired before" in result.reason
        assert eventually(lambda: empty(daemon))


# ---- a daemon that answers when the test does


def test_a_late_answer_is_given_back(pretended: PretendedDaemon, asking: Client) -> None:
    assert asking.store(some_keys(3), bytes(3 * PAGE), timeout=0.05).refused == 3
    began = time.monotonic()
    result = asking.store(some_keys(3, 1), bytes(3 * PAGE), timeout=5)
    assert (result.refused, result.reason) == (3, "the daemon does not answer")
    assert time.monotonic() - began < 3, "one waits for a daemon that hangs, not all"
    answer(pretended, pretended.next())
    assert pretended.owner.header()["used_frames"] == 9
    assert eventually(lambda: pretended.owner.settle() == 0)
    assert pretended.owner.header()["used_frames"] == 0

    promise = asking.reserve_async(some_keys(3, 2), PAGE)
    answer(pretended, pretended.next())
    assert promise.wait(5).publish().stored == 3


def test_a_late_answer_comes_before_one_in_time(pretended: PretendedDaemon, asking: Client) -> None:
    """The keeper waits for the late one and may read both; who waits for the other is told at once."""
    for prompt in range(200):
        asking.reserve_async(some_keys(1, prompt), 1)
        late = pretended.next()
        got: list[tuple[int, float]] = []

        def wait(prompt: int = prompt, got: list[tuple[int, float]] = got) -> None:
            with asking.reserve(some_keys(1, 1000 + prompt), 1, timeout=30) as reservation:
                got.append((len(reservation.granted), time.monotonic()))

        waiting = threading.Thread(target=wait)
        waiting.start()
        in_time = pretended.next()
        began = time.monotonic()
        answer(pretended, *((late, in_time) if prompt % 2 else (in_time, late)))
        waiting.join()
        assert got[0][0] == 1
        assert got[0][1] - began < 5, f"prompt {prompt}"
    pretended.owner.settle()
    assert pretended.owner.check_integrity() == []


def test_answers_out_of_order_find_who_asked(pretended: PretendedDaemon, asking: Client) -> None:
    promises = [asking.reserve_async(some_keys(count, count), 1) for count in range(1, 6)]
    asked = [pretended.next() for _ in promises]
    answer(pretended, *reversed(asked))
    assert [len(promise.wait(5).granted) for promise in promises] == [1, 2, 3, 4, 5]


def test_an_answer_that_nobody_asked_for_is_ignored(pretended: PretendedDaemon, asking: Client) -> None:
    promise = asking.reserve_async(some_keys(2), 1)
    peer, request = pretended.next()
    right = pretended.answer_to(peer, request)
    stranger = type(right)(request.number + 1000, right.outcomes, right.entries, right.serials)
    peer.send(stranger, right, right)
    assert promise.wait(5).publish().stored == 2
    assert asking.attached


def test_a_daemon_that_hangs_up_refuses_what_it_owes(pretended: PretendedDaemon, asking: Client) -> None:
    promise = asking.reserve_async(some_keys(2), 1)
    results = []
    waiting = threading.Thread(target=lambda: results.append(asking.reserve(some_keys(2, 1), 1, timeout=30)))
    waiting.start()
    pretended.next(), pretended.next()
    began = time.monotonic()
    pretended.hang_up()
    waiting.join()
    assert time.monotonic() - began < 2
    for reservation in (results[0], promise.wait(5)):
        assert reservation.publish().refused == 2
        assert reservation.publish().reason == "the daemon is gone"


def test_who_attaches_again_tells_what_it_still_writes(pretended: PretendedDaemon, asking: Client) -> None:
    """So that the daemon can take back what else was granted: answers that never came."""
    promise = asking.reserve_async(some_keys(3), PAGE)
    answer(pretended, pretended.next())
    kept = promise.wait(5)
    done = asking.reserve_async(some_keys(2, 1), PAGE)
    answer(pretended, pretended.next())
    assert done.wait(5).publish().stored == 2
    asking.reserve_async(some_keys(2, 2), PAGE)
    peer, unanswered = pretended.next()
    pretended.answer_to(peer, unanswered)
    pretended.hang_up()
    assert eventually(lambda: len(pretended.greetings) == 2)
    first, again = pretended.greetings
    assert first.token == again.token and first.holds == b""
    assert sorted(np.frombuffer(again.holds, np.uint64).tolist()) == sorted(kept._serials.tolist())
    pretended.owner.keep_only(peer.slot, again.holds)
    assert pretended.owner.header()["used_frames"] == (3 + 2) * 3
    assert kept.publish().stored == 3


def test_an_answer_to_a_dropped_promise_is_given_back(pretended: PretendedDaemon, asking: Client) -> None:
    asking.reserve_async(some_keys(3), PAGE)
    gc.collect()
    answer(pretended, pretended.next())
    assert eventually(lambda: pretended.owner.settle() == 0)
    assert pretended.owner.header()["used_frames"] == 0


def test_a_long_prompt_of_short_pages_is_one_request(client: Client) -> None:
    """131,072 tokens, a token a page: what finds room is granted, and nothing is refused for being asked at once."""
    keys = namespace(1).keys(range(131_072))
    with client.reserve(keys, 16, timeout=30.0) as reservation:
        assert len(reservation.granted) > 0
