"""Daemons with a disk tier."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bare_engine import Engine
from eventually import PATIENCE_S, CoreWaits, eventually, eventually_with_cores
from pagetier.client import Client, Keys
from pagetier.daemon.status.daemon_status import unpack
from pagetier.daemon.status.disk_report import DiskReport, Standing
from pagetier.shm._core import ReserveOutcome
from process_states import is_worker, workers_of
from running_daemon import RunningDaemon, namespace

FRAME = 1 << 16
FRAMES = 16
IN_LMDB = ("--set", "disk.store=lmdb")
IN_FILES = ("--set", "disk.store=files")
_OTHERS = namespace(salt="others")


class DiskDaemon(RunningDaemon):
    """A daemon with a disk tier in a folder of its own, and an arena of `frames` frames, one per page.

    A stop writes all pages, however long the workers, which have idle priority, wait for a core.

    The end of the block asserts that its disk workers have ended.
    """

    def __init__(
        self,
        frames: int = FRAMES,
        size: str = "64MiB",
        *more: str,
        before: Sequence[str] = (),
        disk: Path | None = None,
    ) -> None:
        more = ("--constant=disk.environments=2", "--set=disk.stop_timeout=1h", *more)
        super().__init__(str(frames * FRAME), str(FRAME), *more, before=before)
        self.disk = disk or Path(self.folder.name) / "disk"
        self.frames = frames
        self._size = size
        self._workers: set[int] = set()

    def start(self, *more: str) -> Self:
        """Starts the daemon and waits until it serves. The disk tier may still be opening."""
        return super().start("--disk-path", str(self.disk), "--disk-size", self._size, *more)

    def open(self, *more: str) -> Self:
        """Starts the daemon and waits until its disk tier is open."""
        self.start(*more)
        self.wait_open()
        return self

    def wait_open(self, restarts: int = 0) -> None:
        """Waits until the disk tier is open after at least `restarts` restarts of its worker."""
        assert self.until(lambda disk: disk.standing is Standing.OPEN and disk.restarts >= restarts), self.reported()

    def wait_down(self, *reasons: str) -> None:
        """Waits until the disk tier is down for these reasons."""
        assert self.until(
            lambda disk: disk.standing is Standing.DOWN and all(reason in disk.trouble for reason in reasons)
        ), self.reported()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Replaces the folder of the disk tier by a file for the duration of the block."""
        restarts = self.report().restarts
        self.kill_worker(signal.SIGSTOP)  # else it may notice and end before it is killed
        away = self.disk.rename(self.disk.with_name("away"))
        self.disk.write_text("a file")
        self.kill_worker()
        self.wait_down("is a file")
        yield
        self.disk.unlink()
        away.rename(self.disk)
        self.wait_open(restarts + 1)

    def until(self, what: Any, seconds: float = PATIENCE_S) -> bool:
        """Returns whether the disk tier's report fulfils a condition in time.

        The workers have idle priority: on a busy machine, the time in which they wait for a core does not count.
        """
        waits = CoreWaits(self.pid, others=lambda: workers_of(self.pid))
        return eventually_with_cores(lambda: bool(what(unpack(self.observer().status()).disk)), seconds, waits)

    def reported(self) -> str:
        """Returns the report and the log, for the message of a failed assertion."""
        return f"{self.report()}\n{self.log.read_text()}"

    def report(self) -> DiskReport:
        """Returns the report of the disk tier."""
        return self.snapshot().disk

    def doctor(self) -> str:
        """Returns the output of `pagetier doctor` with this daemon's configuration."""
        config = Path(self.folder.name) / "pagetier.toml"
        config.write_text(f'[disk]\npath = "{self.disk}"\nsize = "{self._size}"\n')
        return self.pagetier("doctor", "--config", str(config)).output

    def worker(self) -> int:
        """Returns the PID of the disk worker, 0 if there is none."""
        pid = next(iter(workers_of(self.pid)), 0)
        self._workers |= {pid} - {0}
        return pid

    def kill_worker(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Sends a signal to the disk worker and returns its PID."""
        pid = self.worker()
        assert pid, self.reported()
        os.kill(pid, number)
        return pid

    @property
    def compresses(self) -> bool:
        """Whether the pages on disk take less room than their bytes, as the index counts it."""
        header = self.header()
        return header.disk_used_frames * header.frame_bytes < header.disk_bytes

    def data_files(self) -> list[Path]:
        """Returns the files that contain pages or say where they are."""
        return sorted(self.disk.glob("*/data.mdb")) + sorted(self.disk.glob("*/frames.*"))

    def fill(self, pages: int) -> range:
        """Stores pages and waits until they are on disk."""
        with Engine(self) as engine:
            return self.store_through(engine, range(pages))

    def store_through(self, engine: Engine, numbers: range) -> range:
        """Stores many pages in small batches, waits for each batch until it is on disk, and returns the pages."""
        batch = self.frames // 2
        for first in range(0, len(numbers), batch):
            assert ReserveOutcome.REFUSED_FULL not in engine.store(numbers[first : first + batch])
            assert not self.save().trouble, self.reported()
        return numbers

    def push_out(self, client: Client, keys: Keys) -> None:
        """Stores other pages until these are no longer in memory. The daemon writes all pages at once."""
        self.until_written()
        for prompt in range(10):
            others = _OTHERS.keys(range(prompt << 20, (prompt << 20) + 16 * self.frames))
            client.reserve(others, FRAME, timeout=PATIENCE_S).publish()
            self.until_written()
            with client.match(keys) as match:
                if not len(match):
                    return
        raise AssertionError("the pages stay in memory")

    @contextmanager
    def stopped_worker(self) -> Iterator[int]:
        """Stops the disk worker for the duration of the block, and yields its PID."""
        pid = self.kill_worker(signal.SIGSTOP)
        try:
            yield pid
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def close_with(self, pages: int) -> range:
        """Stores pages, waits until they are on disk, and stops the daemon."""
        numbers = self.fill(pages)
        self.stop()
        return numbers

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None and (pid := self.worker()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        super().__exit__(kind, error, trace)
        if error is None:
            assert eventually(lambda: not any(map(is_worker, self._workers))), "a worker was left"


class TroubledDaemon(DiskDaemon):
    """A daemon whose disk tier is not expected to open."""

    def __enter__(self) -> Self:
        return self.start()


def evicted(daemon: DiskDaemon, engine: Engine, first: int, pages: int = 8) -> range:
    """Returns pages that are on disk and not in memory."""
    numbers = daemon.store_through(engine, range(first, first + pages))
    daemon.store_through(engine, range(first + 5000, first + 5000 + daemon.frames))  # evicts them from memory
    assert eventually(lambda: engine.places(numbers)["disk"] == pages), engine.places(numbers)
    return numbers


def write_through(*more: str, before: Sequence[str] = (), disk: Path | None = None) -> DiskDaemon:
    """Returns a daemon that writes all pages at once."""
    return DiskDaemon(FRAMES, "64MiB", "--set", "disk.write=through", *more, before=before, disk=disk)
