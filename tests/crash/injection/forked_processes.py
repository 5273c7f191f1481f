"""The processes of a scene: a daemon and engines, which a fork server starts."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import msgspec

from daemon_turns import Turns
from eventually import PATIENCE_S
from injection.fork_client import ForkClient, ForkedProcess
from injection.injector import Injector
from injection.instrumented_build import environment
from running_daemon import RunningDaemon


class Stage(msgspec.Struct, frozen=True):
    """The fork server, the injector and the turns of the daemon, which scenes share, one after another."""

    fork_client: ForkClient
    injector: Injector
    turns: Turns


@contextmanager
def stage(folder: Path, mutant: Path | None = None) -> Iterator[Stage]:
    """Yields a stage, and asserts at the end that no process is left. `mutant` is a patch with a bug for the core."""
    with (
        Injector(folder / "injector") as injector,
        Turns() as turns,
        ForkClient(folder / "log", environment(injector.path, mutant) | turns.environ) as fork_client,
    ):
        yield Stage(fork_client, injector, turns)
        assert fork_client.all_ended(), "a process was left behind"


class ForkedDaemon(RunningDaemon):
    """A daemon that the fork server starts."""

    def __init__(self, fork_client: ForkClient, arena: str, frame: str, *more: str) -> None:
        super().__init__(arena, frame, *more)
        self.log.touch()
        self._fork_client = fork_client

    def launch(self, *more: str) -> Any:
        """Starts the daemon without waiting for it."""
        words = ["--name", self.name, "--socket", str(self.socket), *self._arguments, *more]
        self.process = self._fork_client.spawn("daemon", (words,), self.log)  # type: ignore[assignment]
        return self.process

    def start(self, *more: str) -> Self:
        """Starts the daemon and waits until it serves. Earlier daemons that died during their start are not counted."""
        self._lives = self.times_ready()
        return super().start(*more)

    def times_ready(self) -> int:
        """Returns how often a daemon has reported so far that it serves."""
        return self.log.read_text().count("ready on")

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self.process is not None and self.process.poll() is None


class ForkedEngine:
    """An engine that the fork server starts.

    It executes commands one after another; only result(), do() and end() wait.
    """

    def __init__(self, fork_client: ForkClient, daemon: ForkedDaemon, folder: Path) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process: ForkedProcess = fork_client.spawn(
                "engine", (daemon.socket, folder), daemon.log, (theirs.fileno(),)
            )
        self._pipe = Connection(ours.detach())
        self._pending = 1  # the confirmation that it is attached

    def send_command(self, name: str, *arguments: Any) -> None:
        """Sends a command: the name of a method of roles.EngineCommands, and its arguments."""
        self._pipe.send((name, arguments))
        self._pending += 1

    @property
    def idle(self) -> bool:
        """Whether it has executed all of its commands; False if it died before."""
        try:
            while self._pending and self._pipe.poll():
                self._receive()
        except (EOFError, ConnectionResetError):
            return False
        return not self._pending

    def result(self) -> Any:
        """Returns the result of its last command. Raises EOFError if it has died."""
        while self._pending:
            assert self._pipe.poll(PATIENCE_S), "an engine hangs"
            self._receive()
        return self._last

    def do(self, name: str, *arguments: Any) -> Any:
        """Sends a command and returns its result."""
        self.result()
        self.send_command(name, *arguments)
        return self.result()

    def end(self) -> None:
        """Ends the engine as a process that exits without detaching."""
        self.process.send_signal(signal.SIGCONT)
        self._pipe.close()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()

    def _receive(self) -> None:
        self._last = self._pipe.recv()
        self._pending -= 1
