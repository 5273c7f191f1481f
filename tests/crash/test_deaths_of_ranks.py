"""Deaths in an engine of several processes: a rank among others that write the same page, a scheduler over its workers.

What a single process leaves is in tests/client/test_client_life.py, and in copiers in tests/client/copying.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection

import numpy as np
import pytest

from mortal import Mortal, attached
from paged import PAGE, assert_exact, found, pages_of, prompt, store
from pagetier.client import Client, Part
from running import RunningDaemon, eventually
from soon import Second

FRAMES = 64
RANKS = 4
LONG_S = 20.0


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    """With room for 64 pages."""
    with RunningDaemon(str(FRAMES * PAGE), str(PAGE)) as running:
        yield running


def rank_life(rank: int) -> Callable[[Client, Connection], object]:
    """Reserves its part of a prompt's pages, writes half of them, the other half, and publishes, as it is told to."""

    def live(client: Client, pipe: Connection) -> None:
        part = Part(rank, RANKS)
        while True:
            keys = prompt(pipe.recv())
            shares = pages_of(keys, PAGE, part)
            with client.reserve(keys, PAGE, part, LONG_S) as reservation:
                pipe.send(len(reservation.granted))
                for half in (reservation.granted[::2], reservation.granted[1::2]):
                    pipe.recv()
                    for page in half:
                        reservation.write(int(page), shares[page], rank * len(shares[page]))
                    pipe.send(len(half))
                pipe.recv()
                pipe.send(reservation.publish().stored)

    return live


def all_told(ranks: list[Mortal], order: object) -> list[int]:
    for rank in ranks:
        rank.tell(order)
    return [rank.told() for rank in ranks]


@pytest.mark.parametrize("progress", ["reserved", "half written", "written"])
def test_a_rank_dies_while_the_others_still_write_the_same_page(daemon: RunningDaemon, progress: str) -> None:
    """The page is never found, its frames wait for the survivors, and then it can be stored anew."""
    with ExitStack() as stack:
        reader = stack.enter_context(daemon.client())
        ranks = [stack.enter_context(attached(daemon.socket, rank_life(rank))) for rank in range(RANKS)]
        keys = prompt(1)
        assert all_told(ranks, 1) == [8] * RANKS
        for _ in range(["reserved", "half written", "written"].index(progress)):
            all_told(ranks[:1], None)
        all_told(ranks[1:], None)
        ranks[0].kill()
        assert Second(daemon).sees(lambda: daemon.header()["doomed"] == 8)
        assert daemon.header()["used_frames"] == 8, "the others still write to them"
        all_told(ranks[1:], None)
        assert all_told(ranks[1:], None) == [0] * (RANKS - 1), "they are told that it was for nothing"
        assert Second(daemon).sees(lambda: daemon.header()["used_frames"] == 0)
        assert found(reader, keys) == 0
        assert store(reader, keys).stored == 8
        assert found(reader, keys) == 8


def test_a_rank_that_died_after_its_part_was_done_spoils_nothing(daemon: RunningDaemon) -> None:
    with ExitStack() as stack:
        reader = stack.enter_context(daemon.client())
        ranks = [stack.enter_context(attached(daemon.socket, rank_life(rank))) for rank in range(RANKS)]
        assert all_told(ranks, 1) == [8] * RANKS
        for _ in range(2):
            all_told(ranks, None)
        assert all_told(ranks[:1], None) == [8]
        ranks[0].kill()
        time.sleep(0.5)  # longer than the quarantine
        assert found(reader, prompt(1)) == 0
        assert all_told(ranks[1:], None) == [8] * (RANKS - 1)
        assert found(reader, prompt(1)) == 8


# --- schedulers ------------------------------------------------------------------------------------------------------


def schedule(client: Client, pipe: Connection) -> None:
    """Matches a prompt for its workers, hands it over, and keeps it pinned until its death."""
    while True:
        match = client.match(prompt(pipe.recv()))
        pipe.send(pickle.dumps(match))
        pipe.recv()


def work(client: Client, pipe: Connection) -> None:
    """Adopts what it is handed, copies page after page, slowly, and tells whether all are what they should be."""
    while True:
        keys, handover = pipe.recv()
        with client.adopt(pickle.loads(handover)) as match:
            pipe.send(len(match))
            into = np.zeros((len(match), PAGE), np.uint8)
            for page in range(len(match)):
                time.sleep(0.05)
                assert client.load(match, into[page : page + 1], first=page) == 1
        assert_exact(prompt(keys), into)
        pipe.send(len(into))


def test_the_scheduler_dies_while_its_workers_copy(daemon: RunningDaemon) -> None:
    """Their pins are their own: what they copy stays, whatever others need room for. What nobody copies does not."""
    with ExitStack() as stack:
        other = stack.enter_context(daemon.client())
        scheduler = stack.enter_context(attached(daemon.socket, schedule))
        workers = [stack.enter_context(attached(daemon.socket, work)) for _ in range(2)]
        for number in range(FRAMES // 8):
            assert store(other, prompt(number)).stored == 8
        handover = scheduler.ask(0)
        assert all_told(workers, (0, handover)) == [8, 8]
        scheduler.kill()
        for number in range(100, 110):
            assert eventually(lambda number=number: store(other, prompt(number)).stored == 8)  # type: ignore[misc]
        assert [worker.told() for worker in workers] == [8, 8]
        assert found(other, prompt(1)) == 0, "room was short all the time"


def test_the_scheduler_dies_before_its_workers_have_what_it_found(daemon: RunningDaemon) -> None:
    """Then nobody keeps the pages: what has left by then is a miss, and what is there is exact."""
    with ExitStack() as stack:
        other = stack.enter_context(daemon.client())
        scheduler = stack.enter_context(attached(daemon.socket, schedule))
        worker = stack.enter_context(attached(daemon.socket, work))
        for number in range(2):
            assert store(other, prompt(number)).stored == 8
        handovers = [scheduler.ask(0)]
        scheduler.tell(None)
        handovers.append(scheduler.ask(1))
        scheduler.kill()
        assert Second(daemon).sees(lambda: not any(slot["pins"] for slot in daemon.slots()))
        for number in range(100, 100 + FRAMES // 8 - 1):
            assert store(other, prompt(number)).stored == 8
        adopted = []
        for number in range(2):
            adopted.append(worker.ask((number, handovers[number])))
            assert worker.told() == adopted[-1]
        assert adopted == [0, 8], "the coldest have left"
