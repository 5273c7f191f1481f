"""The client while daemons start and stop, and while its own process forks and dies."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from child_process import in_child
from daemon_turns import Turns
from eventually import PATIENCE_S, Stopwatch, eventually
from keyed_pages import assert_exact, found, in_memory, page_of, prompt, store
from pagetier.client import Client, Match, Outcome
from pagetier.client.adapters import Part, adopt
from refused_threads import allow_threads
from rescued_wait import HOUR_S, rescued_by
from running_daemon import RunningDaemon

SIZE = 100_000
KEYS, MORE, HELD = prompt(0, 10), prompt(1, 10), prompt(2, 10)


@pytest.fixture
def turns() -> Iterator[Turns]:
    """Yields the turns of the daemon."""
    with Turns() as turns:
        yield turns


@pytest.fixture
def daemon(turns: Turns) -> Iterator[RunningDaemon]:
    """Yields a daemon for one test, which may stop and kill it."""
    with RunningDaemon(before=turns.before) as running:
        yield running


@pytest.fixture
def filled(client: Client) -> Client:
    """Returns an attached client that has stored ten pages."""
    assert store(client, KEYS, SIZE).stored == 10
    return client


def restart(daemon: RunningDaemon, client: Client, *options: str) -> None:
    """Starts the next daemon and waits for the client."""
    daemon.start(*options)
    assert client.wait_attached(PATIENCE_S)


def unmapped(daemon: RunningDaemon) -> bool:
    """Returns whether this process has mapped nothing of the daemon's memory."""
    return daemon.name not in Path("/proc/self/maps").read_text()


def removed_but_mapped(daemon: RunningDaemon) -> bool:
    """Returns whether this process has mapped segments of a daemon that has stopped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return any(daemon.name in line and line.endswith("(deleted)") for line in lines)


def loads_nothing(client: Client, match: Match) -> bool:
    out = np.zeros((10, SIZE), np.uint8)
    return client.load(match, out) == 0 and not out.any()


def test_without_a_daemon_matches_miss_and_one_line_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pagetier.client"), Client(tmp_path / "none.sock") as client:
        assert eventually(lambda: any("cannot reach the daemon" in line for line in caplog.messages))
        assert not client.wait_attached(0.0)
        assert in_memory(client, KEYS) == 0
        result = store(client, KEYS)
        assert result.outcomes == [Outcome.REFUSED] * 10 and result.reason
    (line,) = [line for line in caplog.messages if "cannot reach the daemon" in line]
    assert "No such file or directory: start pagetierd, or name its socket; stores are rejected" in line


def test_a_daemon_that_does_not_come_back_is_reported_once_more_with_the_reason(
    daemon: RunningDaemon, filled: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "pagetier.client"):
        daemon.kill()
        assert eventually(lambda: "cannot reach the daemon" in caplog.text)
        lost, unreachable = caplog.messages
        restart(daemon, filled)
    assert "gone" in lost and "Connection refused" in unreachable and str(daemon.socket) in unreachable


def test_while_a_killed_daemon_is_away_only_stores_are_rejected(
    daemon: RunningDaemon, filled: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "pagetier.client"), filled.match(KEYS) as match:
        daemon.kill()
        assert found(filled, KEYS, SIZE) == 10
        assert eventually(lambda: not filled.attached)
        assert store(filled, MORE).refused == 10
        restart(daemon, filled)
        assert len(match) == 10 and match.pinned
    assert found(filled, KEYS, SIZE) == 10
    assert store(filled, MORE).stored == 10
    assert len([line for line in caplog.messages if "gone" in line]) == 1


def test_a_reservation_outlives_the_daemon(daemon: RunningDaemon, client: Client) -> None:
    reservation = client.reserve(KEYS, SIZE)
    daemon.kill()
    for page, key in enumerate(KEYS):
        reservation.write(page, page_of(key, SIZE))
    assert reservation.publish().stored == 10, "publishing needs no daemon"
    assert found(client, KEYS, SIZE) == 10
    restart(daemon, client)
    assert found(client, KEYS, SIZE) == 10


def test_the_rest_of_a_page_outlives_the_daemon(daemon: RunningDaemon, client: Client) -> None:
    """One process may write several parts, and finish one of them earlier."""
    first, second = (client.reserve(KEYS, SIZE, Part(index, 2)) for index in range(2))
    assert first.publish().stored == 10
    daemon.kill()
    restart(daemon, client)
    assert second.publish().stored == 10
    assert in_memory(client, KEYS) == 10
    assert daemon.findings() == []


def test_calls_time_out_once_while_the_daemon_is_stopped(daemon: RunningDaemon, filled: Client) -> None:
    daemon.signal(signal.SIGSTOP)
    with rescued_by(partial(daemon.signal, signal.SIGCONT)):
        for timeout in (2.0, HOUR_S):  # only the first call waits
            assert store(filled, MORE, timeout=timeout).refused == 10
            assert found(filled, KEYS, SIZE) == 10
    daemon.signal(signal.SIGCONT)
    assert eventually(lambda: store(filled, MORE, timeout=PATIENCE_S).stored == 10)
    assert daemon.findings() == [], "pages that were granted too late are released"


def test_after_a_stop_the_memory_is_released_and_a_new_daemon_is_found(daemon: RunningDaemon, filled: Client) -> None:
    assert daemon.stop() == 0
    assert daemon.leftovers() == []
    assert eventually(lambda: unmapped(daemon))
    assert in_memory(filled, KEYS) == 0
    restart(daemon, filled)
    assert store(filled, KEYS, SIZE).stored == 10
    assert found(filled, KEYS, SIZE) == 10


@pytest.mark.parametrize("released", [True, False])
def test_after_a_stop_a_match_in_a_variable_keeps_no_memory(
    daemon: RunningDaemon, filled: Client, released: bool
) -> None:
    """An idle engine has the match of its last request in a variable until the next request."""
    match = filled.match(KEYS)
    if released:
        match.release()
    assert daemon.stop() == 0
    assert eventually(lambda: unmapped(daemon))
    assert loads_nothing(filled, match)
    assert len(adopt(filled.session, match.to_handle())) == 0 and not len(match.page_sizes)
    restart(daemon, filled)
    assert loads_nothing(filled, match)
    assert store(filled, KEYS, SIZE).stored == 10
    match.release()
    assert found(filled, KEYS, SIZE) == 10


def test_a_reservation_that_is_open_during_a_stop_is_rejected_and_keeps_no_memory(
    daemon: RunningDaemon, client: Client
) -> None:
    reservation = client.reserve(KEYS, SIZE)
    assert daemon.stop() == 0
    assert eventually(lambda: unmapped(daemon))
    reservation.write(0, page_of(KEYS[0], SIZE))
    assert reservation.publish().refused == 10


def test_a_copy_that_runs_at_a_stop_ends_before_the_memory_is_released(daemon: RunningDaemon, filled: Client) -> None:
    out = np.zeros((10, SIZE), np.uint8)
    match, session = filled.match(KEYS), filled.session
    assert session is not None
    session.retain_arena()  # as a copy does for which this process cannot wait
    assert daemon.stop() == 0
    restart(daemon, filled)  # attaching does not wait for the copy
    assert session.usable and filled.session is not session
    assert filled.load(match, out) == 10
    assert_exact(KEYS, out)
    session.release_arena()
    assert eventually(lambda: not session.usable)
    assert loads_nothing(filled, match)


def test_a_client_that_may_start_no_thread_attaches_again_beside_a_running_copy(
    daemon: RunningDaemon, filled: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = filled.session
    assert session is not None
    session.retain_arena()  # as a copy does for which this process cannot wait
    allow_threads(0, monkeypatch)
    assert daemon.stop() == 0
    restart(daemon, filled)
    assert store(filled, KEYS, SIZE).stored == 10 and removed_but_mapped(daemon)
    session.release_arena()
    del session
    assert not removed_but_mapped(daemon), "the copy has ended, and no match is left"


def test_a_load_whose_memory_is_released_meanwhile_is_a_miss(filled: Client) -> None:
    session = filled.session

    class Buffers(list[bytearray]):
        """Counts buffers just before they are written to."""

        def __len__(self) -> int:
            assert session is not None and eventually(session.retire)
            return super().__len__()

    out = Buffers(bytearray(SIZE) for _ in KEYS)
    assert filled.load(filled.match(KEYS), out) == 0
    assert not any(map(any, out))


def test_a_match_does_not_keep_segments_that_a_new_daemon_replaced(daemon: RunningDaemon, filled: Client) -> None:
    match, session = filled.match(KEYS), filled.session
    daemon.kill()
    restart(daemon, filled, "--fresh")
    assert session is not None
    assert eventually(lambda: filled.session is not session and not session.usable)
    assert match.pinned and loads_nothing(filled, match)


def test_a_forked_child_misses_and_attaches_by_itself(filled: Client) -> None:
    def child() -> None:
        assert in_memory(filled, KEYS) == 0
        assert filled.wait_attached(PATIENCE_S) and found(filled, KEYS, SIZE) == 10

    with filled.match(KEYS) as match:
        assert in_child(child) == 0
        assert match.pinned and found(filled, KEYS, SIZE) == 10
    assert store(filled, MORE).stored == 10


_HOLDER = """
import sys
from pagetier.client import Client, Namespace
space = Namespace(model="test/model", dtype="float32", page_tokens=16)
client = Client(sys.argv[1], timeout=60.0)
assert client.wait_attached(60.0)
match = client.match(space.keys(range(160)))
reservation = client.reserve(space.keys(range(2 << 20, (2 << 20) + 160)), 100_000)
print(len(match), len(reservation.granted), flush=True)
sys.stdin.readline()
"""


@contextmanager
def holding(daemon: RunningDaemon) -> Iterator[subprocess.Popen[bytes]]:
    """Yields a process that has pinned KEYS and reserved HELD, and kills it."""
    command = [sys.executable, "-c", _HOLDER, str(daemon.socket)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"10 10\n"
        yield process
        process.kill()


def held_pages_are_free(client: Client) -> bool:
    return client.reserve(HELD, 8).granted.size == 10


def test_the_memory_of_a_killed_client_is_released_within_a_second(
    daemon: RunningDaemon, turns: Turns, filled: Client
) -> None:
    for _ in range(5):
        with holding(daemon):
            assert store(filled, HELD).pending == 10
        assert turns.sees_within_a_second(lambda: held_pages_are_free(filled))
        assert daemon.findings() == []


@pytest.mark.wall_clock
def test_the_memory_of_a_dead_client_is_not_granted_during_the_quarantine() -> None:
    """The GPU of the process may still write, also if the daemon that saw it attach is dead too."""
    with RunningDaemon("16MiB", "64KiB", "--constant", "store.quarantine=1.5") as daemon, daemon.client() as client:
        for with_the_daemon in (False, True):
            daemon.drop_all_pages()  # a slow machine may have stored HELD after the quarantine
            store(client, KEYS)
            with holding(daemon) as holder:
                used = daemon.header().used_frames
                if with_the_daemon:
                    daemon.kill()
                since_death = Stopwatch()  # not after kill(): this process may wait for a core in between
                holder.kill()
            if with_the_daemon:
                restart(daemon, client)
            if store(client, HELD).pending == 10:
                assert eventually(lambda before=used: daemon.header().used_frames < before), "the memory is released"  # type: ignore[misc]
            assert since_death.seconds > 1.4


def test_a_process_that_exits_without_close_leaves_nothing(daemon: RunningDaemon, turns: Turns, filled: Client) -> None:
    with holding(daemon) as process:
        process.communicate(b"\n")
        assert process.returncode == 0
    assert turns.sees_within_a_second(lambda: held_pages_are_free(filled))


def test_a_closed_client_is_a_miss(filled: Client) -> None:
    match = filled.match(KEYS)
    filled.close()
    filled.close()
    assert loads_nothing(filled, match)
    assert in_memory(filled, KEYS) == 0
    assert store(filled, MORE).refused == 10
    match.release()
