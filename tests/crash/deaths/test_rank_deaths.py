"""Tests deaths in an engine of several processes: a rank among others that write the same page, and a scheduler.

Deaths of single processes are in tests/client/test_client_lifecycle.py, and in copiers in tests/client/async_copy.
"""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection

import numpy as np
import pytest

from child_process import ChildProcess, all_answers, attached
from eventually import PATIENCE_S, eventually
from keyed_pages import PAGE, assert_exact, found, pages_of, prompt, store
from pagetier.client import Client
from pagetier.client.adapters import Part, adopt
from running_daemon import RunningDaemon

FRAMES = 64
RANKS = 4


def rank_life(rank: int) -> Callable[[Client, Connection], object]:
    """Returns a rank that reserves its part of a prompt, writes both halves and publishes, on commands."""

    def live(client: Client, pipe: Connection) -> None:
        part = Part(rank, RANKS)
        while True:
            keys = prompt(pipe.recv())
            shares = pages_of(keys, PAGE, part)
            with client.reserve(keys, PAGE, part, PATIENCE_S) as reservation:
                pipe.send(len(reservation.granted))
                for half in (reservation.granted[::2], reservation.granted[1::2]):
                    pipe.recv()
                    for page in half:
                        reservation.write(int(page), shares[page], rank * len(shares[page]))
                    pipe.send(len(half))
                pipe.recv()
                pipe.send(reservation.publish().stored)

    return live


@pytest.mark.parametrize("progress", ["reserved", "half written", "written"])
def test_a_rank_may_die_while_others_write_the_same_page(daemon: RunningDaemon, progress: str) -> None:
    """The page is never found, its frames wait for the surviving ranks, and then it can be stored again."""
    with ExitStack() as stack:
        reader = stack.enter_context(daemon.client())
        ranks = [stack.enter_context(attached(daemon.socket, rank_life(rank))) for rank in range(RANKS)]
        keys = prompt(1)
        assert all_answers(ranks, 1) == [8] * RANKS
        for _ in range(["reserved", "half written", "written"].index(progress)):
            all_answers(ranks[:1], None)
        all_answers(ranks[1:], None)
        ranks[0].kill()
        assert eventually(lambda: daemon.header().doomed == 8)
        assert daemon.header().used_frames == 8, "the other ranks still write to the frames"
        all_answers(ranks[1:], None)
        assert all_answers(ranks[1:], None) == [0] * (RANKS - 1), "the other ranks learn that their page was dropped"
        assert eventually(lambda: daemon.header().used_frames == 0)
        assert found(reader, keys) == 0
        assert store(reader, keys).stored == 8
        assert found(reader, keys) == 8


def test_a_rank_that_died_after_its_part_was_stored_costs_no_page(daemon: RunningDaemon) -> None:
    with ExitStack() as stack:
        reader = stack.enter_context(daemon.client())
        ranks = [stack.enter_context(attached(daemon.socket, rank_life(rank))) for rank in range(RANKS)]
        assert all_answers(ranks, 1) == [8] * RANKS
        for _ in range(2):
            all_answers(ranks, None)
        assert all_answers(ranks[:1], None) == [8]
        ranks[0].kill()
        assert eventually(lambda: len(daemon.slots()) == RANKS), "the reader and the living ranks"
        assert found(reader, prompt(1)) == 0
        assert all_answers(ranks[1:], None) == [8] * (RANKS - 1)
        assert found(reader, prompt(1)) == 8


# --- parts that are done ---------------------------------------------------------------------------------------------


def store_part(client: Client, pipe: Connection) -> None:
    """Stores one part of each page of a prompt; detaches and exits when the message is None."""
    while (command := pipe.recv()) is not None:
        number, index, count = command
        part = Part(index, count)
        pipe.send(store(client, prompt(number), part=part, timeout=PATIENCE_S).stored)
    client.close()
    pipe.send("detached")


def storing(stack: ExitStack, daemon: RunningDaemon, count: int) -> list[ChildProcess]:
    """Returns attached processes that store parts of pages."""
    return [stack.enter_context(attached(daemon.socket, store_part)) for _ in range(count)]


def kill_all(ranks: list[ChildProcess]) -> None:
    """Kills all ranks before it waits for any of them."""
    for rank in ranks:
        rank.signal(signal.SIGKILL)
    for rank in ranks:
        rank.kill()


def test_an_engine_of_eight_ranks_that_died_stores_its_prompt(daemon: RunningDaemon) -> None:
    """Its last rank had not begun: no page was complete, and the stored parts do not block a new store."""
    with ExitStack() as stack:
        reader = stack.enter_context(daemon.client())
        dead, restarted = storing(stack, daemon, 8), storing(stack, daemon, 8)
        for index, rank in enumerate(dead[:-1]):
            assert rank.ask((1, index, 8)) == 8
        kill_all(dead)
        assert eventually(lambda: restarted[0].ask((1, 0, 8)) == 8)
        for index in range(1, 8):
            assert restarted[index].ask((1, index, 8)) == 8
        assert found(reader, prompt(1)) == 8


def test_a_rank_that_joined_and_lives_keeps_the_page_until_it_dies(daemon: RunningDaemon) -> None:
    with ExitStack() as stack:
        reader = stack.enter_context(daemon.client())
        first, joined, last = storing(stack, daemon, 3)
        for index, rank in enumerate((first, joined)):
            assert rank.ask((1, index, 4)) == 8 and rank.ask((2, index, 4)) == 8
        kill_all([first])
        assert eventually(lambda: len(daemon.slots()) == 3)
        assert daemon.header().used_frames == 16
        assert last.ask((1, 2, 4)) == 8 and last.ask((1, 3, 4)) == 8
        assert found(reader, prompt(1)) == 8
        kill_all([joined])
        assert eventually(lambda: daemon.header().used_frames == 8), "only the complete page stays"
        assert found(reader, prompt(1)) == 8


def test_a_rank_that_detached_keeps_no_page(daemon: RunningDaemon) -> None:
    """Its pages wait for a rank that has joined, also after its slot was reused by a process that died."""
    with ExitStack() as stack:
        reader = stack.enter_context(daemon.client())
        left, joined = storing(stack, daemon, 2)
        assert left.ask((1, 0, 2)) == 8 and left.ask((2, 0, 4)) == 8 and left.ask((3, 0, 2)) == 8
        assert joined.ask((2, 1, 4)) == 8
        assert left.ask(None) == "detached"
        assert eventually(lambda: daemon.header().used_frames == 8), "no other rank has parts of two prompts"
        next_ones = storing(stack, daemon, 1)
        kill_all([left, *next_ones])
        assert eventually(lambda: len(daemon.slots()) == 2)
        assert joined.ask((2, 2, 4)) == 8 and joined.ask((2, 3, 4)) == 8
        assert found(reader, prompt(2)) == 8
        assert joined.ask((1, 0, 2)) == 8 and joined.ask((1, 1, 2)) == 8, "it can be stored again at once"
        assert found(reader, prompt(1)) == 8
        assert joined.ask((3, 1, 2)) == 8 and found(reader, prompt(3)) == 0
        assert joined.ask(None) == "detached"
        daemon.drop_all_pages()


def test_finished_parts_of_ranks_that_died_without_a_daemon_are_released(daemon: RunningDaemon) -> None:
    """The next daemon detects their deaths."""
    with ExitStack() as stack:
        reader = stack.enter_context(daemon.client())
        dead, living = storing(stack, daemon, 2)
        assert dead.ask((1, 0, 2)) == 8
        assert living.ask((2, 0, 2)) == 8
        daemon.kill()
        kill_all([dead])
        daemon.start()
        assert eventually(lambda: daemon.header().used_frames == 8)
        assert eventually(lambda: store(reader, prompt(1)).stored == 8)
        assert found(reader, prompt(1)) == 8


# --- schedulers ------------------------------------------------------------------------------------------------------


def schedule(client: Client, pipe: Connection) -> None:
    """Matches a prompt, hands it to the workers, and keeps it pinned until its death."""
    while True:
        match = client.match(prompt(pipe.recv()))
        pipe.send(pickle.dumps(match))
        pipe.recv()


def work(client: Client, pipe: Connection) -> None:
    """Adopts a match, copies its pages on the next command, and reports whether all are exact."""
    while True:
        keys, handover = pipe.recv()
        with adopt(client.session, pickle.loads(handover)) as match:
            pipe.send(len(match))
            out = np.zeros((len(match), PAGE), np.uint8)
            pipe.recv()
            for page in range(len(match)):
                assert client.load(match, out[page : page + 1], start_page=page) == 1
        assert_exact(prompt(keys), out)
        pipe.send(len(out))


def test_workers_finish_their_copies_after_the_death_of_the_scheduler(daemon: RunningDaemon) -> None:
    """The workers have pins of their own: the pages that they copy stay, others can be evicted."""
    with ExitStack() as stack:
        other = stack.enter_context(daemon.client())
        scheduler = stack.enter_context(attached(daemon.socket, schedule))
        workers = [stack.enter_context(attached(daemon.socket, work)) for _ in range(2)]
        for number in range(FRAMES // 8):
            assert store(other, prompt(number)).stored == 8
        handover = scheduler.ask(0)
        assert all_answers(workers, (0, handover)) == [8, 8]
        scheduler.kill()
        for number in range(100, 110):
            assert eventually(lambda number=number: store(other, prompt(number)).stored == 8)  # type: ignore[misc]
        assert all_answers(workers, None) == [8, 8]
        assert found(other, prompt(1)) == 0, "the other stores must have needed the room"


def test_pages_of_a_dead_scheduler_are_exact_or_a_miss(daemon: RunningDaemon) -> None:
    """No process keeps the pages pinned then: evicted pages are a miss, the others are exact."""
    with ExitStack() as stack:
        other = stack.enter_context(daemon.client())
        scheduler = stack.enter_context(attached(daemon.socket, schedule))
        worker = stack.enter_context(attached(daemon.socket, work))
        for number in range(2):
            assert store(other, prompt(number)).stored == 8
        handovers = [scheduler.ask(0)]
        scheduler.send(None)
        handovers.append(scheduler.ask(1))
        scheduler.kill()
        assert eventually(lambda: not any(slot.pins for slot in daemon.slots()))
        for number in range(100, 100 + FRAMES // 8 - 1):
            assert store(other, prompt(number)).stored == 8
        adopted = []
        for number in range(2):
            adopted.append(worker.ask((number, handovers[number])))
            assert worker.ask(None) == adopted[-1]
        assert adopted == [0, 8], "the coldest pages were evicted"
