"""Runs daemons and engines as forks of a process without threads that has imported everything, for a fast start."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pagetier.daemon import main as daemon_main

LATE_S: Final = 60.0
BROKE: Final = 99  # the exit code of a child that raised an exception
FLAGS: Final = (
    *("--arena-size", "1MiB", "--arena-frame-size", "4KiB", "--index-entries", "256", "--index-namespaces", "8"),
    *("--store-quarantine", "50ms", "--arena-threads", "1"),
)


class LateError(Exception):
    """A process did not end or respond in time, so it counts as hung."""


class Daemon:
    """One life of a daemon on the segments `name`."""

    def __init__(self, name: str, folder: Path, number: int) -> None:
        self.socket = folder / "pagetier.sock"
        self._log = folder / f"log-{number}"
        self._log.touch()
        arguments = ["--name", name, "--socket", str(self.socket), *FLAGS]
        self.pid = _fork(lambda: _serve(arguments, self._log))
        self._code: int | None = None

    @property
    def log(self) -> str:
        """Its log so far."""
        return self._log.read_text()

    def ready(self) -> bool:
        """Waits until it serves and returns True, or False if it has ended. Raises LateError after the timeout."""
        ends = time.monotonic() + LATE_S
        while "ready on" not in self.log:
            if self.code() is not None:
                return False
            if time.monotonic() > ends:
                raise LateError("the daemon did not become ready")
            time.sleep(0.002)
        return True

    def code(self) -> int | None:
        """Its exit code, None while it runs; negative for a signal."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Ends it by a signal and returns its exit code."""
        if self.code() is None:
            os.kill(self.pid, number)
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code or 0


def asked(work: Callable[[], bytes]) -> bytes:
    """Returns the result of `work` in a child, which then ends as by a crash. Raises LateError after the timeout."""
    here, there = os.pipe()
    pid = _fork(lambda: _write(there, work()))
    os.close(there)
    try:
        return _read(here)
    finally:
        os.close(here)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _read(pipe: int) -> bytes:
    got, ends = b"", time.monotonic() + LATE_S
    while select.select([pipe], [], [], max(0.0, ends - time.monotonic()))[0]:
        piece = os.read(pipe, 1 << 16)
        if not piece:
            return got
        got += piece
    raise LateError("an engine hangs")


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]


def _fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if not pid:
        code = BROKE
        try:
            work()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        finally:
            os._exit(code)
    return pid


def _serve(arguments: list[str], log: Path) -> None:
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    daemon_main.main(arguments)
