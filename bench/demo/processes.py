"""The processes that a demo starts: pagetierd and the engines. None of them outlives the demo."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ARENA = "256MiB"
DISK = "1GiB"
_READY_S = 30.0
_STOP_S = 10.0
_WRITE_OUT_S = 60.0
# Threads that spin while they wait make every engine several times slower when other processes need the cores.
_ENGINE_ENVIRON = {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


class DemoError(Exception):
    """A process of the demo failed; the message has its output."""


def installed(name: str) -> str:
    """Returns the path of a command of this Python's environment."""
    return str(Path(sys.executable).with_name(name))


def environ(more: dict[str, str] | None = None) -> dict[str, str]:
    """Returns the processes' environment, without the settings of a pagetier that this host may have."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PAGETIER_")} | (more or {})


class Daemon:
    """`pagetierd` with its own socket, segments and log. Nothing of it is left when the context ends."""

    def __init__(self, folder: Path) -> None:
        self.name = f"pagetier-demo-{secrets.token_hex(4)}"
        self.socket = folder / "pagetier.sock"
        self._disk = folder / "disk"
        self._log = folder / "pagetierd.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def command(self) -> list[str]:
        """The command line."""
        memory = ["--name", self.name, "--socket", str(self.socket), "--arena-size", ARENA]
        return ["pagetierd", *memory, "--disk-path", str(self._disk), "--disk-size", DISK]

    def start(self) -> None:
        """Starts the daemon and waits until it serves. Raises DemoError if it does not."""
        program, *arguments = self.command
        with self._log.open("ab") as log:
            # In a process group of its own: Ctrl-C on the terminal goes to the demo, which then stops its processes.
            self._process = subprocess.Popen(
                [installed(program), *arguments], stdout=log, stderr=log, env=environ(), process_group=0
            )
        self._wait_ready(self._process)

    def stop(self) -> None:
        """Stops the daemon with SIGTERM: it writes its pages to disk and frees the memory. Raises DemoError."""
        if self._process is not None:
            self._process.terminate()
            if self._process.wait(_WRITE_OUT_S) or list(Path("/dev/shm").glob(f"{self.name}.*")):
                raise DemoError(f"pagetierd did not stop cleanly\n{self._log.read_text()}")

    def kill(self) -> None:
        """Kills the daemon with SIGKILL, like a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stats(self) -> dict[str, Any]:
        """Returns what `pagetier stats --json` prints. Raises DemoError."""
        command = [installed("pagetier"), "stats", "--json", "--socket", str(self.socket)]
        done = subprocess.run(command, env=environ(), capture_output=True, check=False)
        if done.returncode:
            raise DemoError(f"pagetier stats failed with exit code {done.returncode}\n{done.stderr.decode()}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def wait_disk(self) -> None:
        """Waits until the disk tier is open. Raises DemoError if it does not open."""
        ends = time.monotonic() + _READY_S
        while self.stats()["disk"]["standing"] != "open":
            if time.monotonic() > ends:
                raise DemoError(f"the disk tier did not open\n{self._log.read_text()}")
            time.sleep(0.1)

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        ends = time.monotonic() + _READY_S
        while not self._answers():
            if process.poll() is not None or time.monotonic() > ends:
                raise DemoError(f"pagetierd did not become ready: {shlex.join(self.command)}\n{self._log.read_text()}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as end, contextlib.suppress(OSError):
            end.connect(str(self.socket))
            return True
        return False

    def _stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
        for segment in Path("/dev/shm").glob(f"{self.name}.*"):  # left by a daemon that was killed
            segment.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # so that a second Ctrl-C does not leave the daemon behind
        self._stop()


@contextmanager
def engine_process(command: Sequence[str], log: Path) -> Iterator[Iterator[bytes]]:
    """Runs an engine, yields the lines that it writes, and kills it when the context ends.

    Raises:
        DemoError: The engine failed. The message has its log.
    """
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environ(_ENGINE_ENVIRON),
            process_group=0,
        ) as process,
    ):
        try:
            yield _lines(process, log)
        finally:
            process.kill()


def _lines(process: subprocess.Popen[bytes], log: Path) -> Iterator[bytes]:
    yield from process.stdout or ()
    if process.wait():
        raise DemoError(f"an engine failed with exit code {process.returncode}\n{log.read_text()}")
