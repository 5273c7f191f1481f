"""Tests that connections to the metrics or the daemon cannot exceed their share or fill the log."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from eventually import eventually
from http_calls import http_process
from metrics_scrape import ask
from pagetier.daemon.common.log_throttle import SAME
from pagetier.daemon.http.peers import MOST_OF_CALLER
from running_daemon import RunningDaemon

CROWD = 400
FEW_FILES = 48


@contextmanager
def crowd(path: Path, count: int, patience: float | None) -> Iterator[list[socket.socket]]:
    """Opens this many silent connections, as far as the queue accepts them in time, until the end of the block."""
    with ExitStack() as stack:
        guests = list[socket.socket]()
        with suppress(BlockingIOError):
            for _ in range(count):
                guest = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                guest.settimeout(patience)
                guest.connect(str(path))
                guests.append(guest)
        yield guests


def files_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def is_shut(guest: socket.socket) -> bool:
    try:
        return guest.recv(1) == b""
    except ConnectionResetError:
        return True


def test_connections_beyond_the_limit_are_closed_at_once(tmp_path: Path) -> None:
    place = tmp_path / "metrics"
    with RunningDaemon("1MiB", "64KiB", "--set", f"metrics.listen={place}") as daemon:
        assert ask(place).status == 200
        door = http_process(daemon)
        before = files_of(door)
        with crowd(place, CROWD, None) as guests:
            assert len(guests) == CROWD
            assert all(map(is_shut, guests[:-MOST_OF_CALLER])), "the oldest make room"
            assert files_of(door) <= before + MOST_OF_CALLER
            with daemon.client() as client:
                assert client.attached
        assert eventually(lambda: files_of(door) <= before + 1)
        assert ask(place).status == 200
        full = daemon.lines("event=http_full")
        assert len(full) == SAME and all(f"{MOST_OF_CALLER} of this caller" in line for line in full)


def test_a_lack_of_descriptors_logs_a_line_and_no_traceback(tmp_path: Path) -> None:
    few = ["prlimit", f"--nofile={FEW_FILES}:{FEW_FILES}"]
    with RunningDaemon("1MiB", "64KiB", before=few) as daemon:
        with crowd(daemon.socket, 2 * FEW_FILES, 0.5):
            assert eventually(lambda: bool(daemon.lines("event=descriptors"))), daemon.log.read_text()
        assert daemon.lines("Traceback") == []
        assert len(daemon.lines("event=descriptors")) <= SAME
        with daemon.client() as client:
            assert client.attached
