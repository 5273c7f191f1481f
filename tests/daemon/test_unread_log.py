"""A stderr that is not read (a full pipe, a terminal after Ctrl-S) does not keep the daemon from serving and ending."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from bare_engine import Engine
from daemon_constants import PROGRAM
from disk_daemon import DiskDaemon
from pagetier.shm.daemon_link import LinkError

_PIPE_BYTES = 4096


class UnreadLog:
    """Where a daemon logs to: `writing`. No process reads it until read_until()."""

    def __init__(self, reading: int, writing: int) -> None:
        self.reading, self.writing = reading, writing

    def read_until(self, words: str) -> str:
        """Returns what was written, up to a piece that contains these words."""
        text = ""
        while words not in text:
            text += os.read(self.reading, 1 << 16).decode(errors="replace")
        return text

    def close(self) -> None:
        """Closes both ends."""
        os.close(self.reading)
        os.close(self.writing)


def full_pipe() -> UnreadLog:
    log = UnreadLog(*os.pipe())
    fcntl.fcntl(log.writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    os.write(log.writing, b"-" * _PIPE_BYTES)
    return log


def stopped_terminal() -> UnreadLog:
    log = UnreadLog(*pty.openpty())
    termios.tcflow(log.writing, termios.TCOOFF)  # as Ctrl-S does
    return log


@pytest.fixture(params=[full_pipe, stopped_terminal])
def log(request: pytest.FixtureRequest) -> Iterator[UnreadLog]:
    made: Callable[[], UnreadLog] = request.param
    log = made()
    yield log
    log.close()


class UnreadDaemon(DiskDaemon):
    """A daemon with a disk and HTTP that logs to what no process reads."""

    def __init__(self, log: UnreadLog) -> None:
        super().__init__()
        self._unread = log
        self.log.touch()

    def launch(self, *more: str) -> subprocess.Popen[bytes]:
        """Starts the daemon without waiting."""
        command = [sys.executable, "-c", PROGRAM, "--name", self.name]
        command += ["--socket", str(self.socket), *self._arguments, *more]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=self._unread.writing)
        return self.process

    def _serves(self) -> bool:
        try:
            return self.header() is not None
        except LinkError:
            return False


def test_a_daemon_whose_log_is_not_read_serves_and_ends(log: UnreadLog) -> None:
    with UnreadDaemon(log) as daemon:
        for _ in range(3):  # each is a line
            daemon.signal(signal.SIGHUP)
        daemon.kill_worker()
        daemon.wait_open(restarts=1)
        with Engine(daemon) as engine:
            engine.goes_on(0)
        assert daemon.stop() == 0


def test_lines_that_were_not_read_in_time_are_there_later() -> None:
    log = full_pipe()
    with closing(log), UnreadDaemon(log) as daemon:
        daemon.signal(signal.SIGHUP)
        assert "event=ready" in log.read_until("event=reloaded")
