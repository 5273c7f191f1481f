"""A real daemon for a test: started, killed, stopped, and checked for leftovers at the end."""

from __future__ import annotations

import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from weakref import WeakSet

from click.testing import CliRunner, Result

from daemon_constants import PROGRAM
from eventually import PATIENCE_S, CoreWaits, eventually, eventually_with_cores
from pagetier.client import Client, Namespace
from pagetier.daemon.cli import main
from pagetier.daemon.stats.snapshot import Snapshot
from pagetier.daemon.stats.snapshot_reader import take_snapshot
from pagetier.shm._core import AttachmentRecord, IndexHeader, Observer
from pagetier.shm.daemon_link import Link
from pagetier.shm.protocol import (
    BUILD,
    Answer,
    Check,
    Findings,
    Flush,
    Flushed,
    Observe,
    Request,
    Save,
    Saved,
)
from pagetier.shm.segment_files import observe_and_close
from process_states import workers_of

_SILENT: Final = "the disk has not answered"  # said in passing, while it is slow


class RunningDaemon:
    """`pagetierd` with a socket and segments of its own.

    As a context manager it is stopped at the end, and asserts that no shared memory is left. Its options are those of
    pagetierd and `--constant` (see daemon_constants.py). `before` is a command that runs it. It reads the file `config`
    if a test has written it before the start.
    """

    def __init__(self, arena: str = "16MiB", frame: str = "64KiB", *more: str, before: Sequence[str] = ()) -> None:
        self.name = f"pagetier-test-{secrets.token_hex(6)}"
        self.folder = tempfile.TemporaryDirectory(prefix="pagetier-test-")
        self.socket = Path(self.folder.name) / "pagetier.sock"
        self.log = Path(self.folder.name) / "log"
        self.config = Path(self.folder.name) / "pagetierd.toml"
        self._arguments = ["--arena-size", arena, "--set", f"arena.frame_size={frame}", *more]
        self._before = before
        self.process: subprocess.Popen[bytes] | None = None
        self._lives = 0
        self._clients: WeakSet[Client] = WeakSet()

    def start(self, *more: str) -> Self:
        """Starts the daemon and waits until it serves."""
        process = self.launch(*more)
        self._lives += 1
        eventually(lambda: self._serves() or process.poll() is not None, math.inf)
        assert self._serves(), self.log.read_text()
        return self

    def launch(self, *more: str) -> subprocess.Popen[bytes]:
        """Starts the daemon without waiting."""
        command = [*self._before, sys.executable, "-c", PROGRAM]
        config = ["--config", str(self.config)] if self.config.exists() else []
        command += ["--name", self.name, "--socket", str(self.socket), *config, *self._arguments, *more]
        environ = {key: value for key, value in os.environ.items() if not key.startswith("PAGETIER_")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log, env=environ)
        return self.process

    @property
    def pid(self) -> int:
        """The PID of the process that was started last."""
        assert self.process is not None
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the daemon."""
        assert self.process is not None
        self.process.send_signal(number)

    def reload(self, text: str, event: str = "event=reloaded") -> str:
        """Returns the log line with this event after a SIGHUP with this text in the configuration file."""
        before = len(self.lines(event))
        self.config.write_text(text)
        self.signal(signal.SIGHUP)
        assert eventually(lambda: len(self.lines(event)) > before), self.log.read_text()
        return self.lines(event)[-1]

    def kill(self) -> None:
        """Sends SIGKILL and waits, like a crash: the segments stay."""
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """Sends SIGTERM, which removes the segments. Returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Waits for the end of the daemon, which has its own limits, and returns its exit code."""
        assert self.process is not None
        return self.process.wait()

    def client(self, *, timeout: float = PATIENCE_S, name: str = "") -> Client:
        """Returns an attached client, which is closed with the daemon if the test does not close it.

        A test of what a client does without an answer passes a shorter timeout.
        """
        client = Client(self.socket, timeout=timeout, name=name)
        self._clients.add(client)
        assert client.wait_attached(PATIENCE_S), self.log.read_text()
        return client

    def findings(self) -> list[str]:
        """Returns the findings of check_integrity() in the running daemon."""
        answer = self.ask(Check(1))
        assert isinstance(answer, Findings)
        return answer.findings

    def ask(self, request: Request) -> Answer:
        """Sends a request as an observer and returns the response."""
        with self._observing() as (link, _):
            return link.ask(request, PATIENCE_S)

    def observer(self) -> Observer:
        """Opens an observer without the daemon, which may be busy, stopped or dead."""
        return observe_and_close([os.open(f"/dev/shm/{self.name}.{kind}", os.O_RDONLY) for kind in ("index", "locks")])

    def header(self) -> IndexHeader:
        """Returns the numbers in the index's header."""
        return self._observer().header()

    def slots(self) -> list[AttachmentRecord]:
        """Returns the attached processes with their pins and counters."""
        return self._observer().attachments_with_pins()

    def lines(self, words: str) -> list[str]:
        """Returns the lines of the log that contain these words."""
        return [line for line in self.log.read_text().splitlines() if words in line]

    def pagetier(self, *words: str) -> Result:
        """Runs a command of `pagetier` for this daemon."""
        variables = {name: None for name in os.environ if name.startswith("PAGETIER_")}
        runner = CliRunner(env={**variables, "PAGETIER_NAME": self.name})
        at = 2 if words[0] == "pages" else 1  # a group of commands
        return runner.invoke(main, [*words[:at], "--socket", str(self.socket), *words[at:]])

    def snapshot(self) -> Snapshot:
        """Returns the snapshot that `pagetier stats` shows."""
        return take_snapshot(self._observer())

    def flush(self, tier: str | None = None) -> Flushed:
        """Drops all unused pages from one tier, or from both for None."""
        flushed = self.ask(Flush(1, None, tier))
        assert isinstance(flushed, Flushed)
        return flushed

    def drop_all_pages(self) -> None:
        """Flushes until no page is left in memory and on disk: a page that is being read or written is kept."""

        def is_empty() -> bool:
            self.flush()
            header = self.header()
            return not (header.used_frames or header.disk_used_frames or header.open_entries)

        assert eventually(is_empty), self.header()

    def disk_is_open(self) -> bool:
        """Returns whether the disk tier is open."""
        return b'"standing":"open"' in (self.observer().status() or b"")

    def wait_disk_open(self) -> None:
        """Waits until the disk tier is open. The time in which its workers, of idle priority, get no core is free."""
        waits = CoreWaits(self.pid, others=lambda: workers_of(self.pid))
        assert eventually_with_cores(self.disk_is_open, PATIENCE_S, waits), self.log.read_text()

    def save(self) -> Saved:
        """Writes all pages to disk, and waits until they are written or cannot be. A disk may be slow."""

        def saved() -> Saved | None:
            answer = self.ask(Save(1))
            assert isinstance(answer, Saved)
            ended = answer.synced or (answer.trouble and _SILENT not in answer.trouble)
            return answer if ended else None

        answer = eventually(saved)
        assert answer is not None, self.log.read_text()
        return answer

    def until_written(self) -> None:
        """Waits until all pages in memory are on disk, too, and no write is in progress."""

        def written() -> bool:
            return self.save().synced and not self.header().open_entries

        assert eventually(written), self.header()

    def leftovers(self) -> list[str]:
        """Returns the shared memory under this daemon's name."""
        return sorted(path.name for path in Path("/dev/shm").glob(f"{self.name}.*"))

    def _observer(self) -> Observer:
        with self._observing() as (_, observer):
            return observer

    @contextmanager
    def _observing(self) -> Iterator[tuple[Link, Observer]]:
        """Yields an observer's link, and the observer."""
        with closing(Link(self.socket, PATIENCE_S)) as link:
            yield link, observe_and_close(link.greet(Observe(BUILD), PATIENCE_S).descriptors)

    def _serves(self) -> bool:
        """Returns whether this life of the daemon has logged that it is ready, which it does once."""
        return self.log.read_text().count("ready on") == self._lives

    def __enter__(self) -> Self:
        try:
            return self.start()
        except AssertionError:  # a start that takes too long must not leave a daemon behind
            self.stop()
            raise

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
        for client in list(self._clients):
            client.close()
        left, output = self.leftovers(), self.log.read_text()
        for name in left:
            (Path("/dev/shm") / name).unlink()
        self.folder.cleanup()
        if error is None:
            assert left == [], "shared memory was left"
            assert code == 0 and "Traceback" not in output, f"exit code {code}: {output}"


def namespace(page_tokens: int = 16, **fields: str) -> Namespace:
    """Returns a namespace for tests."""
    return Namespace(model="test/model", dtype="float32", page_tokens=page_tokens, **fields)
