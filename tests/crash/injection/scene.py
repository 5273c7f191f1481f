"""The scene of a case: a daemon, engines, and a client that observes what happens to the others."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from eventually import PATIENCE_S, eventually
from injection.colliding_pages import FRAME, FRAMES, PAGE, SEED, keys_of
from injection.forked_processes import ForkedDaemon, ForkedEngine, Stage
from oracle.checker import FLEET_NAME, WORKER_NAME, Losses, findings
from oracle.journal import Journal, Reported, read_journals
from oracle.witness import Verified, Witness
from pagetier.daemon.stats.snapshot_reader import take_snapshot
from pagetier.shm._core import IndexHeader

QUARANTINE: Final = 0.05


class InjectionScene:
    """The processes of the cases of an operation, until the end of the context.

    `flags` are more flags of the daemon. `folder` is the place for a disk and for the journals of each case. `timeout`
    is that of the observing client, in seconds.
    """

    def __init__(self, on: Stage, folder: Path, flags: Sequence[str], timeout: float = PATIENCE_S) -> None:
        self.injector, self.turns = on.injector, on.turns
        self.daemon = ForkedDaemon(
            on.fork_client, str(FRAMES * FRAME), str(FRAME), "--constant", f"store.quarantine={QUARANTINE}", *flags
        )
        has_fleet = any(flag.startswith("remote.url=") for flag in flags)
        self.has_disk = "--disk-path" in flags or has_fleet
        self._tier = FLEET_NAME if has_fleet else WORKER_NAME
        self.folder = folder
        self._fork_client = on.fork_client
        self._timeout = timeout
        self._cases = 0
        self._next = 0
        self._engines: list[ForkedEngine] = []

    def begin(self) -> None:
        """Begins a new case: the cache is empty, and only the observing client is attached."""
        self._cases += 1
        self.until_disk_is_open()
        self.journals = self.folder / str(self._cases)
        self.journals.mkdir()
        self.journal = Journal.of_this_process(self.journals)
        self.onlooker = Witness(self.client, self.journal, SEED, PAGE)
        self.empty()
        self.before = self.header()
        self._served_before = self.daemon.times_ready()

    def engine(self) -> ForkedEngine:
        """Starts an engine and waits until it is attached."""
        engine = self.arriving()
        engine.result()
        return engine

    def arriving(self) -> ForkedEngine:
        """Starts an engine without waiting for it."""
        self._engines.append(ForkedEngine(self._fork_client, self.daemon, self.journals))
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

    def takes(self, numbers: Iterable[int]) -> bool:
        """Returns whether the daemon refuses none of these pages; "cadence" may leave some out of a full arena."""
        result = self.onlooker.store(keys_of(numbers))
        return result.stored + result.present + result.left_out == len(result.codes)

    def header(self) -> IndexHeader:
        """Returns the current header of the index, with or without a daemon."""
        return self.daemon.observer().header()

    def state(self) -> str:
        """Returns the header, the attached processes and the log, for the message of a failed assertion."""
        observer = self.daemon.observer()
        return f"{observer.header()} {observer.attachments_with_pins()} {self.daemon.log.read_text()}"

    def served(self) -> bool:
        """Returns whether a daemon serves that began in this case, and after the last renew()."""
        return self.daemon.times_ready() > self._served_before

    def until_attached(self) -> None:
        """Waits until the observing client is attached to the daemon that runs."""
        assert eventually(lambda: self.client.attached), self.daemon.log.read_text()

    def disk_is_open(self) -> bool:
        """Returns whether the disk tier, or the fleet, is open."""
        if self._tier == FLEET_NAME:
            return take_snapshot(self.daemon.observer()).fleet.standing == "open"
        return b'"standing":"open"' in (self.daemon.observer().status() or b"")

    def until_disk_is_open(self) -> None:
        """Waits until the disk tier is open, if the scene has one."""
        assert not self.has_disk or eventually(self.disk_is_open), self.daemon.log.read_text()

    def renew(self) -> None:
        """Replaces the daemon, and with it the disk worker."""
        self.daemon.signal(signal.SIGUSR1)
        self.daemon.wait()
        self.daemon.start()
        self._served_before = self.daemon.times_ready()  # the next one is another
        self.until_attached()
        self.until_disk_is_open()

    def worker(self) -> int:
        """Returns the pid of the worker of the disk tier or of the fleet; 0 if there is none."""
        slots = self.daemon.observer().attachments_with_pins()
        return next((int(slot.pid) for slot in slots if slot.name == self._tier), 0)

    def quiet(self) -> bool:
        """Returns whether no page is being written."""
        return not self.header().open_entries

    def rest(self) -> None:
        """Waits until no page is being written."""
        assert eventually(self.quiet), self.header()

    def pins(self, but: Iterable[int] = ()) -> int:
        """Returns the pins of all attached processes, except of the disk worker and the processes in `but`."""
        slots = self.daemon.observer().attachments_with_pins()
        return sum(slot.pins for slot in slots if slot.pid not in but and slot.name != self._tier)

    def dismiss(self) -> None:
        """Ends all engines of the case, and waits until nothing is pinned or being written."""
        for engine in self._engines:
            engine.end()
        self._engines.clear()
        if not self.daemon.lives:
            self.daemon.start()
        self.until_attached()
        assert eventually(lambda: self.quiet() and not self.pins()), self.state()

    def empty(self) -> None:
        """Drops all pages, which no process uses."""
        since = self.dropping()

        def dropped() -> bool:
            return not self.flush() and not self.header().disk_pages

        assert eventually(dropped), self.daemon.log.read_text()
        self.dropping(since)

    def flush(self, tier: str | None = None) -> int:
        """Drops the pages of a tier, or of all, and returns how many frames are in use then."""
        self.daemon.flush(tier)
        return self.header().used_frames

    def dropping(self, since: int | None = None) -> int:
        """Records in the journal that all pages are dropped, since now or since the given time; returns that time."""
        since = time.monotonic_ns() if since is None else since
        self.journal.write(Reported.DROPPING, keys_of(range(self._next)).data, since)
        return since

    def judge(self, may_go: Losses) -> None:
        """Asserts that the case has broken no promise so far, by its journals."""
        found = findings(read_journals(self.journals), may_go=may_go)
        assert found == [], [*map(str, found), self.state()]

    def _wake(self) -> None:
        """Resumes processes that are still stopped because a case failed."""
        if self.daemon.lives:
            self.daemon.signal(signal.SIGCONT)
            worker = self.worker()
            if worker:
                os.kill(worker, signal.SIGCONT)

    def __enter__(self) -> Self:
        self.injector.watch(self.folder / "disk")
        self.daemon.start()
        self.client = self.daemon.client(timeout=self._timeout)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.injector.disarm()
        self._wake()
        for engine in self._engines:
            engine.end()
        self.client.close()
        self.daemon.__exit__(kind, error, trace)
