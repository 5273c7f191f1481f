"""Runs a `pagetierd` for one server of the benchmark."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pagetier.client.cli.bench.programs import BenchmarkError, Program, program_path
from pagetier.client.cli.bench.resident import segment_bytes, session_bytes
from pagetier.client.cli.daemon_probe import accepts_clients
from pagetier.client.cli.replay.daemon_counters import DaemonCounters, observe

_START_S: Final = 600.0  # it populates its whole arena
_STOP_S: Final = 60.0
_PROBE_S: Final = 1.0
_ATTACH_S: Final = 60.0
_HALVES: Final = 2  # the scheduler's and the worker's
_LINES: Final = 4


def own_environment() -> dict[str, str]:
    """Returns this process's environment without what would set up pagetier."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PAGETIER")}


class BenchDaemon:
    """A running daemon.

    Attributes:
        name: The name of its segments.
        socket: Its control socket.
    """

    def __init__(self, name: str, socket: Path, program: Program) -> None:
        self.name, self.socket, self._program = name, socket, program
        program.wait_until(lambda: accepts_clients(socket, "pagetier-bench"), _START_S)
        self._counters = DaemonCounters(socket)

    @property
    def resident_bytes(self) -> int:
        """The bytes of its processes and of its arena that are in memory."""
        return session_bytes(self._program.pid, self.name) + segment_bytes(self.name)

    @property
    def evicted_pages(self) -> int:
        """The pages that it has evicted."""
        return self._counters.deltas().evicted

    def wait_for_engine(self, engine: Program) -> None:
        """Waits until both halves of an engine are attached.

        Raises:
            BenchmarkError: They do not attach, for example because pagetier is not installed beside vLLM.
        """
        observer = observe(self.socket)
        try:
            engine.wait_until(lambda: len(observer.attachments_with_pins()) >= _HALVES, _ATTACH_S)
        except BenchmarkError:
            said = [line for line in engine.log_text.splitlines() if "pagetier" in line.lower()][-_LINES:]
            lines = said or ["its log does not mention pagetier: is it installed in the environment of vLLM?"]
            raise BenchmarkError("\n  ".join(["vLLM runs without pagetier:", *lines])) from None


@contextmanager
def running_daemon(folder: Path, arena_bytes: int, frame_bytes: int) -> Iterator[BenchDaemon]:
    """Yields a daemon with an empty arena and without a disk, and removes what it leaves.

    Args:
        folder: A folder for its socket and its log.
        arena_bytes: The size of its arena.
        frame_bytes: Its arena.frame_size.

    Raises:
        BenchmarkError: It does not start.
    """
    program, name = program_path("pagetierd", "install pagetier there"), f"pagetier-bench-{secrets.token_hex(4)}"
    socket = folder / "pagetier.sock"
    flags = [f"--name={name}", f"--socket={socket}"]
    command = [str(program), *flags, f"--arena-size={arena_bytes}", f"--set=arena.frame_size={frame_bytes}"]
    started = Program(command, own_environment(), folder / "pagetierd.log", signal.SIGTERM, _STOP_S)
    try:
        yield BenchDaemon(name, socket, started)
    finally:
        started.stop()
        _remove_segments(name)


def _remove_segments(name: str) -> None:
    """Removes the segments of a daemon that had to be killed; one that stops has removed them."""
    for file in Path("/dev/shm").glob(f"{name}.*"):
        file.unlink(missing_ok=True)
