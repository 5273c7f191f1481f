"""A real daemon of a test's own: started, killed, stopped, and checked at the end to have left nothing behind."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pagetier.client import Client, Namespace
from pagetier.shm._core import Observer
from pagetier.shm.daemon_link import Link
from pagetier.shm.protocol import BUILD, Check, Findings, Observe

START_S = 20.0


class RunningDaemon:
    """`pagetierd` on a socket and segments of its own.

    As a context manager it is stopped at the end, and must then have left no shared memory. before: a command that
    runs it.
    """

    def __init__(self, arena: str = "16MiB", frame: str = "64KiB", *more: str, before: Sequence[str] = ()) -> None:
        self.name = f"pagetier-test-{secrets.token_hex(6)}"
        self.folder = tempfile.TemporaryDirectory(prefix="pagetier-test-")
        self.socket = Path(self.folder.name) / "pagetier.sock"
        self.log = Path(self.folder.name) / "log"
        self._arguments = ["--arena-size", arena, "--arena-frame-size", frame, *more]
        self._before = before
        self.process: subprocess.Popen[bytes] | None = None
        self._lives = 0

    def start(self, *more: str) -> Self:
        """Starts it and waits until it serves."""
        self.launch(*more)
        self._lives += 1
        ends = time.monotonic() + START_S
        while not self._serves():
            assert self.process is not None and self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < ends, f"the daemon does not get ready: {self.log.read_text()}"
            time.sleep(0.01)
        return self

    def launch(self, *more: str) -> subprocess.Popen[bytes]:
        """Starts it and does not wait."""
        command = [*self._before, sys.executable, "-c", "from pagetier.daemon.main import main; main()"]
        command += ["--name", self.name, "--socket", str(self.socket), *self._arguments, *more]
        environ = {key: value for key, value in os.environ.items() if not key.startswith("PAGETIER_")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log, env=environ)
        return self.process

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the daemon."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, as a crash: the segments stay."""
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """SIGTERM: the segments go. Returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """The exit code, when it has ended."""
        assert self.process is not None
        return self.process.wait(START_S)

    def client(self, **options: object) -> Client:
        """An attached client."""
        client = Client(self.socket, **options)  # type: ignore[arg-type]
        assert client.wait_attached(START_S), self.log.read_text()
        return client

    def findings(self) -> list[str]:
        """What check_integrity() says in the living daemon."""
        with self._looking() as (link, _):
            answer = link.ask(Check(1), START_S)
        assert isinstance(answer, Findings)
        return answer.findings

    def header(self) -> dict[str, int]:
        """The numbers in the index's header."""
        return self._observer().header()

    def slots(self) -> list[dict[str, Any]]:
        """Who is attached, with pins and counts."""
        return self._observer().slots()

    def leftovers(self) -> list[str]:
        """Shared memory under this daemon's name."""
        return sorted(path.name for path in Path("/dev/shm").glob(f"{self.name}.*"))

    def _observer(self) -> Observer:
        with self._looking() as (_, (index, locks)):
            return Observer(index, locks)

    @contextmanager
    def _looking(self) -> Iterator[tuple[Link, tuple[int, ...]]]:
        """As somebody who only looks: a link, and descriptors of index and lock words."""
        link = Link(self.socket, START_S)
        try:
            descriptors = link.greet(Observe(BUILD), START_S).descriptors
            try:
                yield link, descriptors
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
        finally:
            link.close()

    def _serves(self) -> bool:
        """Each life of the daemon says once in the log that it is ready."""
        return self.log.read_text().count("ready on") == self._lives

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process is not None
        code = 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            if error is None:
                assert self.findings() == []
            code = self.stop()
        left, told = self.leftovers(), self.log.read_text()
        for name in left:
            (Path("/dev/shm") / name).unlink()
        self.folder.cleanup()
        if error is None:
            assert left == [], "shared memory was left"
            assert code == 0 and "Traceback" not in told, told


def eventually(what: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether it becomes true in time."""
    ends = time.monotonic() + seconds
    while not what():
        if time.monotonic() > ends:
            return False
        time.sleep(0.005)
    return True


def namespace(page_tokens: int = 16, **fields: str) -> Namespace:
    """A namespace for tests."""
    return Namespace(model="test/model", dtype="float32", page_tokens=page_tokens, **fields)
