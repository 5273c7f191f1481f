"""Tests seven failures that were found in LMCache's server, with the behaviour required here.

All tests use the real daemon, with processes that really die.
"""

from __future__ import annotations

import random
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from bare_engine import Engine
from child_process import attached
from daemon_turns import Turns
from disk_daemon import DiskDaemon
from eventually import PATIENCE_S, eventually
from file_changes import write_at
from in_process_server import Peer
from keyed_pages import PAGE, found, page_of, pages_of, prompt, store
from page_reservations import outcomes_of
from pagetier.client import Client, Outcome
from pagetier.shm._core import KEY_BYTES, page_requests
from pagetier.shm.protocol import (
    BUILD,
    Attach,
    Check,
    Fetch,
    Fetched,
    FetchOutcome,
    Findings,
    Flush,
    Flushed,
    Prompt,
    Reserve,
    Reserved,
    Space,
)
from running_daemon import RunningDaemon
from seeded_random import chance

FRAMES = 64
HOUR_S = 3600.0


# --- 1: a writer dies before its commit, and its page is served ------------------------------------------------------


def _write_and_report(client: Client, pipe: Connection) -> None:
    """Fills all pages of a prompt except for the last bytes, reports that, and waits for its death."""
    keys = prompt(pipe.recv())
    with client.reserve(keys, PAGE) as reservation:
        for at, key in enumerate(keys):
            reservation.write(at, page_of(key)[: PAGE - 8])
        pipe.send(len(reservation.granted))
        pipe.recv()


def test_a_writer_that_dies_before_its_commit_is_never_served(daemon: RunningDaemon) -> None:
    with daemon.client() as reader:
        for number in range(3):
            keys = prompt(number)
            with attached(daemon.socket, _write_and_report) as writer:
                assert writer.ask(number) == len(keys)
                assert found(reader, keys) == 0 and store(reader, keys).pending == len(keys)
                writer.kill()
            assert found(reader, keys) == 0, (
                "a page that was never committed is not found, also when its writer is dead"
            )
            stored = eventually(lambda keys=keys: store(reader, keys).stored == len(keys))  # type: ignore[misc]
            assert stored, "an uncommitted page must not prevent another store"
            assert found(reader, keys) == len(keys)


# --- 2: the response to an error is lost ------------------------------------------------------------------------------


def test_an_error_gets_a_response_and_delays_no_later_request(daemon: RunningDaemon) -> None:
    space = Space(b"d" * KEY_BYTES, "space", 16)
    pages = page_requests(bytes(KEY_BYTES), PAGE.to_bytes(8, "little"))
    with Peer(daemon.socket) as peer:
        peer.ask(Attach(BUILD, 1, "asks nonsense"))
        peer.send(
            Reserve(1, space, 0, 1, pages, prompts=(Prompt(1),)),
            Reserve(2, space, 7, 3, pages),
            Reserve(3, space, 0, 0, pages),
            Fetch(4, b"no key", 1.0),
            Flush(5, None, "no such tier"),
            Reserve(6, space, 0, 1, pages),
            Check(7),
        )
        answers: dict[int, Reserved | Fetched | Flushed | Findings] = {}
        while len(answers) < 7:
            answer = peer.answer()
            assert isinstance(answer, Reserved | Fetched | Flushed | Findings), answer
            answers[answer.number] = answer
    wrong = [answers[number] for number in (1, 2, 3, 4)]
    assert all(isinstance(answer, Reserved | Fetched) and answer.reason for answer in wrong), answers
    granted = answers[6]
    assert isinstance(granted, Reserved) and outcomes_of(granted) == b"\0"
    assert answers[7] == Findings(7, [])


def test_a_fetch_gets_a_response_if_the_disk_worker_dies() -> None:
    with DiskDaemon(16) as daemon, Engine(daemon) as engine:
        daemon.store_through(engine, range(40))
        daemon.kill_worker(signal.SIGSTOP)
        engine.ask_fetch(range(4), timeout=HOUR_S)
        assert engine.link.ask(Check(99), PATIENCE_S) == Findings(99, []), "it has got the earlier request, too"
        pid = daemon.kill_worker(signal.SIGKILL)
        assert eventually(lambda: daemon.worker() != pid), "the worker needs a core to die, with nice 10"
        assert set(engine.answer().outcomes) <= {FetchOutcome.IN_MEMORY, FetchOutcome.ABSENT}, "long before its timeout"


# --- 3: a fast restart of the daemon is never noticed ----------------------------------------------------------------


def test_a_restart_is_noticed_however_fast_it_is(daemon: RunningDaemon) -> None:
    """A stop releases the memory: a client that did not notice would find pages that no other client has."""
    with daemon.client() as client:
        for number in range(3):
            keys, newer = prompt(number), prompt(100 + number)
            assert store(client, keys).stored == len(keys)
            daemon.stop()
            daemon.start()
            with daemon.client() as other:
                assert store(other, newer).stored == len(newer)
            assert eventually(lambda newer=newer: found(client, newer) == len(newer))  # type: ignore[misc]
            assert found(client, keys) == 0
            assert client.wait_attached(PATIENCE_S) and store(client, keys).stored == len(keys)


def test_after_a_crash_and_a_fast_restart_nothing_is_lost(daemon: RunningDaemon) -> None:
    with daemon.client() as client:
        keys = prompt(1)
        assert store(client, keys).stored == len(keys)
        for life in range(3):
            daemon.kill()
            daemon.start()
            assert found(client, keys) == len(keys)
            fresh = prompt(10 + life)
            assert eventually(lambda fresh=fresh: store(client, fresh).stored == len(fresh))  # type: ignore[misc]
            assert found(client, fresh) == len(fresh)


# --- 4: a killed daemon is noticed late ------------------------------------------------------------------------------


def test_a_killed_daemon_is_noticed_at_once_also_by_a_waiting_client(daemon: RunningDaemon) -> None:
    with daemon.client() as client:
        daemon.signal(signal.SIGSTOP)
        ended = threading.Event()

        def wait_long() -> None:
            assert store(client, prompt(1), timeout=HOUR_S).refused == 8
            ended.set()

        waiting = threading.Thread(target=wait_long)
        waiting.start()
        assert eventually(lambda: client._attachment.requests._waiting)
        daemon.kill()
        assert eventually(lambda: not client.attached)
        assert ended.wait(PATIENCE_S), "not at the end of its timeout"
        waiting.join()
    daemon.start()
    assert eventually(lambda: not daemon.slots()), "the closed client finds it and returns its slot"


# --- 5: anonymous locks outlive their owner --------------------------------------------------------------------------


def _match_and_stay(client: Client, pipe: Connection) -> None:
    """Matches pages, which pins them until they are loaded: here they never are."""
    locked = [client.match(prompt(number)) for number in pipe.recv()]
    pipe.send(sum(map(len, locked)))
    pipe.recv()


def test_pages_pinned_by_a_dead_process_can_be_evicted_within_a_second(daemon: RunningDaemon, turns: Turns) -> None:
    everything = range(FRAMES // 8)
    with daemon.client() as client:
        for number in everything:
            assert store(client, prompt(number)).stored == 8
        with attached(daemon.socket, _match_and_stay) as reader:
            assert reader.ask(everything) == FRAMES
            owners = {slot.pid: slot.pins for slot in daemon.slots() if slot.pins}
            assert owners == {reader.pid: FRAMES}, "each pin names its owner"
            assert store(client, prompt(50)).refused == 8
            reader.kill()
        assert turns.sees_within_a_second(lambda: store(client, prompt(51)).stored == 8)
        assert not any(slot.pins for slot in daemon.slots())


# --- 6: a corrupt page from disk is served ---------------------------------------------------------------------------


def _scramble(files: list[Path], rng: random.Random) -> None:
    """Flips bits everywhere except in the pages that hold LMDB's trees, which are verified when the tier is opened."""
    for file in files:
        for at in range(1 << 16, file.stat().st_size, 1 << 16):
            write_at(file, at + rng.randrange(1 << 16), bytes([rng.randrange(256)]))


def test_a_corrupt_page_on_disk_is_a_miss() -> None:
    """Every 64 KiB of the disk have a flipped bit, with pages of 60,000 bytes: some pages are intact and served."""
    seed = int(chance().integers(1 << 32))
    with DiskDaemon(16) as daemon, Engine(daemon) as engine:
        daemon.store_through(engine, range(96))
        _scramble(daemon.data_files(), random.Random(seed))
        served = []
        for number in range(96 - 17):
            engine.fetch([number])
            served.append(engine.where(number))  # raises if a page has other bytes
        assert served.count("nowhere") > 20 and set(served) <= {"memory", "nowhere", "disk"}, served
        assert daemon.snapshot().disk_work.damaged > 20


# --- 7: a burst keeps the oldest pages, drops the newest, and calls that success -------------------------------------


def _burst(client: Client, pipe: Connection) -> None:
    """Stores prompt after prompt as fast as possible, and returns all outcomes."""
    first, count = pipe.recv()
    pipe.send([set(store(client, prompt(number)).outcomes) for number in range(first, first + count)])
    pipe.recv()


Kept = dict[int, list[int]]


def _kept_after_a_burst(daemon: RunningDaemon, reported: set[Outcome]) -> Kept:
    """Lets two engines store. Returns the pages of each prompt that are found, by the first prompt of the engine."""
    prompts = 5 * FRAMES // 8
    with daemon.client() as client, attached(daemon.socket, _burst) as one, attached(daemon.socket, _burst) as other:
        one.send((0, prompts))
        other.send((1000, prompts))
        for outcomes in (*one.reported(), *other.reported()):
            assert outcomes <= reported, "no page is rejected while older ones stay"
        kept = {first: [found(client, prompt(first + at)) for at in range(prompts)] for first in (0, 1000)}
    assert sum(map(sum, kept.values())) == FRAMES, kept
    return kept


def test_a_burst_rejects_no_page_and_fills_the_memory(daemon: RunningDaemon) -> None:
    kept = _kept_after_a_burst(daemon, {Outcome.STORED, Outcome.LEFT_OUT})
    assert all(pages[0] == 0 for pages in kept.values()), "the oldest pages were evicted"


def test_with_lru_a_burst_keeps_the_newest_pages() -> None:
    with RunningDaemon(str(FRAMES * PAGE), str(PAGE), "--set", "evict.policy=lru") as daemon:
        kept = _kept_after_a_burst(daemon, {Outcome.STORED})
    assert any(pages[-1] == 8 for pages in kept.values()), "the engine that ended first may have no page left"
    for pages in kept.values():
        assert pages[0] == 0 and pages == sorted(pages), "the oldest pages were evicted"


def test_a_store_that_is_too_large_is_rejected_at_its_tail(daemon: RunningDaemon) -> None:
    keys = prompt(1, FRAMES + 16)
    with daemon.client() as client:
        assert store(client, prompt(0)).stored == 8
        result = client.store(keys, pages_of(keys))
        assert result.outcomes == [Outcome.STORED] * FRAMES + [Outcome.REFUSED] * 16
        assert found(client, keys) == FRAMES and found(client, prompt(0)) == 0
