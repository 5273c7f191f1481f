"""The client while daemons start and stop, and while its own process forks and dies."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from eventually import Second
from pagetier.client import Client, Outcome
from running_daemon import START_S, RunningDaemon, eventually, namespace

KEYS = namespace().keys(range(160))
MORE = namespace().keys(range(5000, 5160))
PAGES = np.random.default_rng(1).integers(0, 256, (10, 100_000), dtype=np.uint8)


def loads_exactly(client: Client) -> bool:
    """Returns whether all ten pages are found with their bytes."""
    out = np.zeros_like(PAGES)
    with client.match(KEYS) as match:
        return client.load(match, out) == 10 and np.array_equal(out, PAGES)


def test_without_a_daemon_matches_miss_and_one_line_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pagetier.client"), Client(tmp_path / "none.sock") as client:
        assert not client.wait_attached(0.3)
        assert len(client.match(KEYS)) == 0
        result = client.store(KEYS, PAGES)
        assert result.outcomes == [Outcome.REFUSED] * 10 and result.reason
    assert len([line for line in caplog.messages if "cannot reach the daemon" in line]) == 1


def test_while_a_killed_daemon_is_away_only_stores_are_rejected(caplog: pytest.LogCaptureFixture) -> None:
    with RunningDaemon() as daemon, daemon.client() as client, caplog.at_level(logging.INFO, "pagetier.client"):
        assert client.store(KEYS, PAGES).stored == 10
        with client.match(KEYS) as match:
            daemon.kill()
            assert loads_exactly(client)
            assert eventually(lambda: not client.attached)
            assert client.store(MORE, PAGES).refused == 10
            daemon.start()
            assert client.wait_attached(START_S)
            assert len(match) == 10 and match.pinned
        assert loads_exactly(client)
        assert client.store(MORE, PAGES).stored == 10
        assert len([line for line in caplog.messages if "gone" in line]) == 1


def test_a_reservation_outlives_the_daemon() -> None:
    with RunningDaemon() as daemon, daemon.client() as client:
        reservation = client.reserve(KEYS, PAGES.shape[1])
        daemon.kill()
        for page in range(10):
            reservation.write(page, PAGES[page])
        assert reservation.publish().stored == 10, "publishing needs no daemon"
        assert loads_exactly(client)
        daemon.start()
        assert client.wait_attached(START_S)
        assert loads_exactly(client)


def test_calls_time_out_once_while_the_daemon_is_stopped() -> None:
    with RunningDaemon() as daemon, daemon.client(timeout=START_S) as client:
        assert client.store(KEYS, PAGES).stored == 10
        daemon.signal(signal.SIGSTOP)
        for least, most in ((2.0, 8.0), (0.0, 2.0)):
            began = time.monotonic()
            assert client.store(MORE, PAGES, timeout=2.0).refused == 10
            assert least <= time.monotonic() - began < most, "only the first call waits"
            assert loads_exactly(client)
        daemon.signal(signal.SIGCONT)
        assert eventually(lambda: client.store(MORE, PAGES).stored == 10, START_S)
        assert daemon.findings() == [], "pages that were granted too late are released"


def test_after_a_stop_the_memory_is_released_and_a_new_daemon_is_found() -> None:
    with RunningDaemon() as daemon, daemon.client() as client:
        assert client.store(KEYS, PAGES).stored == 10
        assert daemon.stop() == 0
        assert daemon.leftovers() == []
        assert eventually(lambda: daemon.name not in Path("/proc/self/maps").read_text())
        assert len(client.match(KEYS)) == 0
        daemon.start()
        assert client.wait_attached(START_S)
        assert client.store(KEYS, PAGES).stored == 10
        assert loads_exactly(client)


@pytest.mark.parametrize("released", [True, False])
def test_after_a_stop_a_match_in_a_variable_keeps_no_memory(released: bool) -> None:
    """An idle engine has the match of its last request in a variable until the next request."""
    with RunningDaemon() as daemon, daemon.client() as client:
        assert client.store(KEYS, PAGES).stored == 10
        match = client.match(KEYS)
        if released:
            match.release()
        assert daemon.stop() == 0
        assert eventually(lambda: daemon.name not in Path("/proc/self/maps").read_text())
        out = np.zeros_like(PAGES)
        assert client.load(match, out) == 0 and not out.any()
        assert len(client.adopt(match.to_handle())) == 0 and not len(match.page_sizes)
        daemon.start()
        assert client.wait_attached(START_S)
        assert client.load(match, out) == 0 and not out.any()
        assert client.store(KEYS, PAGES).stored == 10
        match.release()
        assert loads_exactly(client)


def test_a_reservation_that_is_open_during_a_stop_is_rejected_and_keeps_no_memory() -> None:
    with RunningDaemon() as daemon, daemon.client() as client:
        reservation = client.reserve(KEYS, PAGES.shape[1])
        assert daemon.stop() == 0
        assert eventually(lambda: daemon.name not in Path("/proc/self/maps").read_text())
        reservation.write(0, PAGES[0])
        assert reservation.publish().refused == 10


def test_a_copy_that_runs_at_a_stop_ends_before_the_memory_is_released() -> None:
    with RunningDaemon() as daemon, daemon.client() as client:
        assert client.store(KEYS, PAGES).stored == 10
        out = np.zeros_like(PAGES)
        match, session = client.match(KEYS), client.session
        assert session is not None
        session.retain_arena()  # as a copy does for which this process cannot wait
        assert daemon.stop() == 0
        daemon.start()
        assert client.wait_attached(START_S), "attaching does not wait for the copy"
        assert session.usable and client.session is not session
        assert client.load(match, out) == 10 and np.array_equal(out, PAGES)
        session.release_arena()
        assert eventually(lambda: not session.usable)
        assert client.load(match, out) == 0


def test_a_load_whose_memory_is_released_meanwhile_is_a_miss() -> None:
    class Buffers(list[bytearray]):
        """Counts buffers just before they are written to."""

        def __len__(self) -> int:
            assert session is not None and eventually(session.retire)
            return super().__len__()

    with RunningDaemon() as daemon, daemon.client() as client:
        assert client.store(KEYS, PAGES).stored == 10
        session, out = client.session, Buffers(bytearray(PAGES.shape[1]) for _ in PAGES)
        assert client.load(client.match(KEYS), out) == 0
        assert not any(map(any, out))


def test_a_match_does_not_keep_segments_that_a_new_daemon_replaced() -> None:
    with RunningDaemon() as daemon, daemon.client() as client:
        assert client.store(KEYS, PAGES).stored == 10
        match, session = client.match(KEYS), client.session
        daemon.kill()
        daemon.start("--fresh")
        assert client.wait_attached(START_S) and session is not None
        assert eventually(lambda: client.session is not session and not session.usable)
        assert match.pinned and client.load(match, np.zeros_like(PAGES)) == 0


def test_a_forked_child_misses_and_attaches_by_itself() -> None:
    with RunningDaemon() as daemon, daemon.client() as client:
        assert client.store(KEYS, PAGES).stored == 10
        with client.match(KEYS) as match:
            child = os.fork()
            if not child:
                missed = len(client.match(KEYS)) == 0
                hits = client.wait_attached(10) and loads_exactly(client)
                os._exit(0 if missed and hits else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert match.pinned and loads_exactly(client)
        assert client.store(MORE, PAGES).stored == 10


_HOLDER = """
import sys, time
from pagetier.client import Client, Namespace
space = Namespace(model="test/model", dtype="float32", page_tokens=16)
client = Client(sys.argv[1])
assert client.wait_attached(10)
match = client.match(space.keys(range(160)))
reservation = client.reserve(space.keys(range(9000, 9160)), 100_000)
print(len(match), len(reservation.granted), flush=True)
sys.stdin.readline()
"""


def test_the_memory_of_a_killed_client_is_released_within_a_second() -> None:
    with RunningDaemon() as daemon, daemon.client() as client:
        assert client.store(KEYS, PAGES).stored == 10
        for _ in range(5):
            holder = subprocess.Popen(
                [sys.executable, "-c", _HOLDER, daemon.socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            assert holder.stdout is not None and holder.stdin is not None
            assert holder.stdout.readline() == b"10 10\n"
            held = namespace().keys(range(9000, 9160))
            assert client.store(held, PAGES).pending == 10
            holder.kill()
            holder.communicate()
            second = Second(daemon)
            assert second.sees(lambda: client.reserve(namespace().keys(range(9000, 9160)), 8).granted.size == 10)
            assert daemon.findings() == []


def test_the_memory_of_a_dead_client_is_not_granted_during_the_quarantine() -> None:
    """The GPU of the process may still write, also if the daemon that saw it attach is dead too."""
    held = namespace().keys(range(9000, 9160))
    with RunningDaemon("16MiB", "64KiB", "--store-quarantine", "1.5s") as daemon, daemon.client() as client:
        client.store(KEYS, PAGES)
        for with_the_daemon in (False, True):
            holder = subprocess.Popen(
                [sys.executable, "-c", _HOLDER, daemon.socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"10 10\n"
            if with_the_daemon:
                daemon.kill()
            holder.kill()
            died = time.monotonic()
            holder.communicate()
            if with_the_daemon:
                daemon.start()
                assert eventually(lambda: client.attached)
            used = daemon.header().used_frames
            assert client.store(held, PAGES).pending == 10 or time.monotonic() > died + 1.4
            assert eventually(lambda before=used: daemon.header().used_frames < before), "the memory is released"  # type: ignore[misc]
            assert time.monotonic() > died + 1.4


def test_a_process_that_exits_without_close_leaves_nothing() -> None:
    with RunningDaemon() as daemon, daemon.client() as client:
        client.store(KEYS, PAGES)
        subprocess.run([sys.executable, "-c", _HOLDER, daemon.socket], input=b"\n", check=True, capture_output=True)
        second = Second(daemon)
        assert second.sees(lambda: client.reserve(namespace().keys(range(9000, 9160)), 8).granted.size == 10)


def test_a_closed_client_is_a_miss() -> None:
    with RunningDaemon() as daemon:
        client = daemon.client()
        client.store(KEYS, PAGES)
        match = client.match(KEYS)
        client.close()
        client.close()
        assert client.load(match, np.zeros_like(PAGES)) == 0
        assert len(client.match(KEYS)) == 0
        assert client.store(MORE, PAGES).refused == 10
        match.release()
