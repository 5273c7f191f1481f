"""The processes of a sweep: a daemon, engines, and a client that observes while others die or are stopped."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from kill_points.colliding_pages import FRAME, FRAMES, PAGE, SEED, keys_of
from kill_points.control import Control
from kill_points.fork_client import ForkClient, ForkedProcess
from oracle.checker import Losses, findings
from oracle.journal import Journal, Reported, read_journals
from oracle.witness import Verified, Witness
from pagetier.shm._core import IndexHeader, Observer
from pagetier.shm.protocol import Flush
from pagetier.shm.segment_files import observe_and_close
from running_daemon import START_S, RunningDaemon, eventually

QUARANTINE_S: Final = 0.05
SHORT_S: Final = 0.1
SLACK_S: Final = 0.5
"""The delay that a machine with two shared cores may add to a timeout, in seconds."""


class ForkedDaemon(RunningDaemon):
    """A daemon that the fork server starts."""

    def __init__(self, fork_client: ForkClient, *more: str) -> None:
        super().__init__(str(FRAMES * FRAME), str(FRAME), "--store-quarantine", f"{QUARANTINE_S}s", *more)
        self.log.touch()
        self._nursery = fork_client

    def launch(self, *more: str) -> Any:
        """Starts the daemon without waiting for it."""
        words = ["--name", self.name, "--socket", str(self.socket), *self._arguments, *more]
        self.process = self._nursery.spawn("daemon", (words,), self.log)  # type: ignore[assignment]
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

    @property
    def pid(self) -> int:
        """The pid of the process that was started last."""
        assert self.process is not None
        return self.process.pid

    def observer(self) -> Observer:
        """Opens an observer without the daemon, which may be stopped or dead."""
        files = [os.open(f"/dev/shm/{self.name}.{kind}", os.O_RDONLY) for kind in ("index", "locks")]
        return observe_and_close(files)


class Engine:
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
                self._last = self._pipe.recv()
                self._pending -= 1
        except (EOFError, ConnectionResetError):
            return False
        return not self._pending

    def result(self) -> Any:
        """Returns the result of its last command. Raises EOFError if it has died."""
        while self._pending:
            assert self._pipe.poll(START_S), "an engine hangs"
            self._last = self._pipe.recv()
            self._pending -= 1
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
            self.process.wait(START_S)
        finally:
            self.process.kill()


class Scene:
    """The processes of a sweep, until the end of the context.

    `folder` is the place for journals; each case has one.
    """

    def __init__(self, fork_client: ForkClient, control: Control, folder: Path, flags: Sequence[str]) -> None:
        self.control = control
        self.daemon = ForkedDaemon(fork_client, *flags)
        self.has_disk = "--disk-path" in flags
        self.folder = folder
        self._nursery = fork_client
        self._cases = 0
        self._next = 0
        self._engines: list[Engine] = []

    def begin(self) -> None:
        """Begins a new case: the cache is empty, and only the observing client is attached."""
        self._cases += 1
        self.until_disk_is_open()
        self.journals = self.folder / str(self._cases)
        self.journals.mkdir()
        self.journal = Journal.of_this_process(self.journals)
        self.onlooker = Witness(self.client, self.journal, SEED, PAGE)
        self.empty()
        self._gone_before = self._gone()
        self._served_before = self.daemon.times_ready()

    def engine(self) -> Engine:
        """Starts an engine and waits until it is attached."""
        engine = self.arriving()
        engine.result()
        return engine

    def arriving(self) -> Engine:
        """Starts an engine without waiting for it."""
        self._engines.append(Engine(self._nursery, self.daemon, self.journals))
        return self._engines[-1]

    def numbers(self, count: int) -> list[int]:
        """Returns new numbers of pages."""
        self._next += count
        return list(range(self._next - count, self._next))

    def verify(self, numbers: Iterable[int], disk_s: float = 0.0) -> Verified:
        """Matches, loads and compares pages with the observing client."""
        return self.onlooker.verify(keys_of(numbers), disk_s)

    def store(self, numbers: Iterable[int], timeout: float | None = None) -> int:
        """Stores pages with the observing client, and returns how many are stored or present."""
        result = self.onlooker.store(keys_of(numbers), timeout=timeout)
        return result.stored + result.present

    def header(self) -> IndexHeader:
        """Returns the current header of the index, with or without a daemon."""
        return self.daemon.observer().header()

    def served(self) -> bool:
        """Returns whether a daemon that began in this case serves."""
        return self.daemon.times_ready() > self._served_before

    def disk_is_open(self) -> bool:
        """Returns whether the disk tier is open."""
        return b'"standing":"open"' in (self.daemon.observer().status() or b"")

    def until_disk_is_open(self) -> None:
        """Waits until the disk tier is open, if the scene has one."""
        assert not self.has_disk or eventually(self.disk_is_open, START_S), self.daemon.log.read_text()

    def renew(self) -> None:
        """Replaces the daemon, and with it the disk worker."""
        self.daemon.signal(signal.SIGUSR1)
        self.daemon.wait()
        self.daemon.start()
        assert eventually(lambda: self.client.attached, START_S)
        self.until_disk_is_open()

    def worker(self) -> int:
        """Returns the pid of the disk worker; 0 if there is none."""
        slots = self.daemon.observer().attachments_with_pins()
        return next((int(slot.pid) for slot in slots if slot.name == "disk tier"), 0)

    def quiet(self) -> bool:
        """Returns whether no page is being written."""
        return not self.header().open_entries

    def rest(self) -> None:
        """Waits until no page is being written."""
        assert eventually(self.quiet), self.header()

    def pins(self, but: Iterable[int] = ()) -> int:
        """Returns the pins of all attached processes, except of the disk worker and the processes in `but`."""
        slots = self.daemon.observer().attachments_with_pins()
        return sum(slot.pins for slot in slots if slot.pid not in but and slot.name != "disk tier")

    def dismiss(self) -> None:
        """Ends all engines of the case."""
        for engine in self._engines:
            engine.end()
        self._engines.clear()

    def empty(self) -> None:
        """Drops all pages, which no process uses."""
        since = self.dropping()

        def dropped() -> bool:
            self.ask(Flush(1, None))
            header = self.header()
            return not header.used_frames and not header.disk_pages

        assert eventually(dropped, START_S), self.daemon.log.read_text()
        self.dropping(since)

    def dropping(self, since: int | None = None) -> int:
        """Records in the journal that all pages are dropped, since now or since the given time; returns that time."""
        since = time.monotonic_ns() if since is None else since
        self.journal.write(Reported.DROPPING, keys_of(range(self._next)).data, since)
        return since

    def ask(self, request: Any) -> Any:
        """Sends a request to the daemon as an administrator, and returns the response."""
        with self.daemon._observing() as (link, _):
            return link.ask(request, START_S)

    def violations(self, extra: int = 0) -> list[str]:
        """Returns the promises that the case has broken so far, by the journals.

        `extra` is the number of pages that may be lost for reasons of the case.
        """
        gone = self._gone() - self._gone_before + extra
        found = findings(read_journals(self.journals), may_go=Losses(at_most=max(0, gone)))
        return list(map(str, found))

    def _gone(self) -> int:
        header = self.header()
        return header.evicted + header.disk_evicted + header.disk_damaged

    def _wake(self) -> None:
        """Resumes processes that are still stopped because a case failed."""
        if self.daemon.lives:
            self.daemon.signal(signal.SIGCONT)
            worker = self.worker()
            if worker:
                os.kill(worker, signal.SIGCONT)

    def __enter__(self) -> Self:
        self.daemon.start()
        self.client = self.daemon.client(timeout=2.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.control.disarm()
        self._wake()
        self.dismiss()
        self.client.close()
        self.daemon.__exit__(kind, error, trace)


def timed(what: Callable[[], Any]) -> tuple[Any, float]:
    """Returns the result and the seconds it took, without the time in which this thread waited for a processor."""
    began = time.monotonic() - _waited_for_a_core()
    return what(), time.monotonic() - _waited_for_a_core() - began


def _waited_for_a_core() -> float:
    """Returns the seconds in which this thread was ready to run but had no processor."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
