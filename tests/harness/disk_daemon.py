"""A daemon with a disk tier, and an engine without the client library, whose pages follow from their numbers."""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import signal
import struct
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from numbered_pages import key_of, keys_of, read_page, write_page
from pagetier.daemon.disk.status import DiskReport, Standing
from pagetier.shm._core import Pins, ReserveOutcome, Session
from pagetier.shm.daemon_link import Link, LinkError
from pagetier.shm.protocol import (
    BUILD,
    Answer,
    Attach,
    Fetch,
    Fetched,
    FetchOutcome,
    Request,
    Reserve,
    Reserved,
    Save,
    Saved,
    Space,
)
from running_daemon import START_S, RunningDaemon, eventually

PAGE, FRAME = 60_000, 1 << 16
SPACE = Space(hashlib.sha256(b"space").digest(), "test/model", 16)
WAIT_S = 30.0


def content_of(number: int) -> bytes:
    """Returns the content of a page."""
    return np.random.default_rng(number).bytes(PAGE)


class DiskDaemon(RunningDaemon):
    """A daemon with a disk tier in a folder of its own, and an arena of `frames` frames, one per page.

    The end of the block asserts that its disk workers have ended.
    """

    def __init__(self, frames: int = 16, size: str = "64MiB", *more: str) -> None:
        super().__init__(str(frames * FRAME), str(FRAME), "--disk-environments", "2", *more)
        self.disk = Path(self.folder.name) / "disk"
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
        restarts, away = self.report().restarts, self.disk.rename(self.disk.with_name("away"))
        self.disk.write_text("a file")
        self.kill_worker()
        self.wait_down("is a file")
        yield
        self.disk.unlink()
        away.rename(self.disk)
        self.wait_open(restarts + 1)

    def until(self, what: Any, seconds: float = WAIT_S) -> bool:
        """Returns whether the disk tier's report fulfils a condition in time."""
        return eventually(lambda: bool(what(self.report())), seconds)

    def reported(self) -> str:
        """Returns the report and the log, for the message of a failed assertion."""
        return f"{self.report()}\n{self.log.read_text()}"

    def report(self) -> DiskReport:
        """Returns the report of the disk tier."""
        return self.snapshot().disk

    def ask(self, request: Request) -> Answer:
        """Sends a request as an observer and returns the response."""
        with self._observing() as (link, _):
            return link.ask(request, WAIT_S)

    def save(self) -> Saved:
        """Writes all pages to disk, and waits until they are written or cannot be."""
        ends = time.monotonic() + WAIT_S
        while True:
            saved = self.ask(Save(1))
            assert isinstance(saved, Saved)
            if saved.synced or saved.trouble:
                return saved
            assert time.monotonic() < ends, f"{saved} {self.reported()}"
            time.sleep(0.02)

    def doctor(self) -> str:
        """Returns the output of `pagetier doctor` with this daemon's configuration."""
        config = Path(self.folder.name) / "pagetier.toml"
        config.write_text(f'[disk]\npath = "{self.disk}"\nsize = "{self._size}"\n')
        return self.pagetier("doctor", "--config", str(config)).output

    def worker(self) -> int:
        """Returns the PID of the disk worker, 0 if there is none."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        for pid in map(int, children.read_text().split()):
            if b"pagetier.tiers.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                self._workers.add(pid)
                return pid
        return 0

    def kill_worker(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Sends a signal to the disk worker and returns its PID."""
        pid = self.worker()
        assert pid, self.reported()
        os.kill(pid, number)
        return pid

    def data_files(self) -> list[Path]:
        """Returns the data files, which contain the pages."""
        return sorted(self.disk.glob("*/data.mdb"))

    def fill(self, pages: int) -> range:
        """Stores pages and waits until they are on disk."""
        with Engine(self) as engine:
            return engine.store_through(self, range(pages))

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
        if self.process is not None and self.process.poll() is None and self.worker():
            self.kill_worker(signal.SIGCONT)
        super().__exit__(kind, error, trace)
        if error is None:
            assert eventually(lambda: not any(map(_is_worker, self._workers))), "a worker was left"


class TroubledDaemon(DiskDaemon):
    """A daemon whose disk tier is not expected to open."""

    def __enter__(self) -> Self:
        return self.start()


def _is_worker(pid: int) -> bool:
    try:
        return b"pagetier.tiers.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


class Engine:
    """An attached process that compares each page that it finds with the page's only content."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self._numbers = itertools.count(1)
        self._token = secrets.randbits(63)
        self._path = daemon.socket
        self.attach()

    def attach(self) -> None:
        """Attaches to this daemon or its successor."""
        assert eventually(self._attached, START_S)

    def _attached(self) -> bool:
        try:
            self.link = Link(self._path, START_S)
        except LinkError:
            return False
        try:
            greeting = self.link.greet(Attach(BUILD, self._token, "engine"), START_S)
        except LinkError:
            self.link.close()
            return False
        index, locks, arena = greeting.descriptors
        self.session = Session(index, locks, arena, greeting.welcome.slot)
        for descriptor in greeting.descriptors:
            os.close(descriptor)
        return True

    def store(self, numbers: Iterable[int]) -> bytes:
        """Stores a chain of pages and returns the outcomes."""
        pages = list(numbers)
        sizes = struct.pack(f"<{len(pages)}Q", *[PAGE] * len(pages))
        answer = self.link.ask(Reserve(next(self._numbers), SPACE, 0, 1, keys_of(pages), sizes), WAIT_S)
        assert isinstance(answer, Reserved)
        for at, number in enumerate(pages):
            if answer.outcomes[at] == ReserveOutcome.GRANTED:
                entry = answer.entries[4 * at : 4 * at + 4]
                write_page(self.session, entry, content_of(number))
                assert self.session.publish(entry, answer.serials[8 * at : 8 * at + 8], 0) == b"\1"
        return answer.outcomes

    def ask_fetch(self, numbers: Iterable[int], timeout: float = WAIT_S) -> None:
        """Sends a fetch request without waiting for the response."""
        self.link.send(Fetch(next(self._numbers), keys_of(numbers), timeout), WAIT_S)

    def answer(self) -> Fetched:
        """Returns the next response to a fetch request."""
        ends = time.monotonic() + 2 * WAIT_S
        while time.monotonic() < ends:
            for answer in self.link.read(1.0):
                assert isinstance(answer, Fetched)
                return answer
        raise AssertionError("a fetch is not answered")

    def fetch(self, numbers: Iterable[int], timeout: float = WAIT_S) -> list[int]:
        """Fetches pages from disk into memory and returns the outcomes."""
        self.ask_fetch(numbers, timeout)
        return list(self.answer().outcomes)

    def where(self, number: int) -> str:
        """Returns "memory" (after comparing the content), "disk" or "nowhere"."""
        with self.session.match(Pins, None, key_of(number)) as pins:
            if not len(pins):
                return "disk" if pins.available_pages else "nowhere"
            assert read_page(self.session, pins, PAGE) == content_of(number), f"page {number} has other bytes"
            return "memory"

    def places(self, numbers: Iterable[int]) -> Counter[str]:
        """Returns the number of pages in each place."""
        return Counter(map(self.where, numbers))

    def available_pages(self, numbers: Sequence[int]) -> tuple[int, int]:
        """Returns how many pages of a chain are in memory, and how many in memory or on disk."""
        with self.session.match(Pins, None, keys_of(numbers)) as pins:
            return len(pins), pins.available_pages

    def store_through(self, daemon: DiskDaemon, numbers: range) -> range:
        """Stores many pages in small batches, waits for each batch until it is on disk, and returns the pages."""
        for first in range(0, len(numbers), 8):
            assert ReserveOutcome.REFUSED_FULL not in self.store(numbers[first : first + 8])
            assert not daemon.save().trouble, daemon.reported()
        return numbers

    def goes_on(self, first: int) -> None:
        """Asserts that stores and matches in memory work as usual."""
        for start in range(first, first + 60, 6):
            assert ReserveOutcome.REFUSED_FULL not in self.store(range(start, start + 6))
            assert self.places(range(start, start + 6)) == {"memory": 6}
        assert self.fetch([first + 54, 99_999], 2) == [FetchOutcome.IN_MEMORY, FetchOutcome.ABSENT]

    def close(self) -> None:
        self.session.retire()
        self.link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def evicted(daemon: DiskDaemon, engine: Engine, first: int, pages: int = 8) -> range:
    """Returns pages that are on disk and not in memory."""
    numbers = engine.store_through(daemon, range(first, first + pages))
    engine.store_through(daemon, range(first + 5000, first + 5000 + daemon.frames))  # evicts them from memory
    assert eventually(lambda: engine.places(numbers)["disk"] == pages), engine.places(numbers)
    return numbers
