"""Runs the clients of a replay: processes that are assigned requests in batches, and that may die."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client.cli.replay.page_content import Pattern, wrong_pages
from pagetier.client.cli.replay.replay_report import ReplayCounts
from pagetier.client.cli.replay.trace import Trace
from pagetier.client.client import Client
from pagetier.client.keys import Keys, Namespace
from pagetier.shm import clock

ATTACH_S: Final = 10.0
TIMEOUT_S: Final = 30.0
"""The timeout of a store and of the disk. A replay measures hits, not timeouts; an unreachable daemon rejects at once.
"""


class ReplayJob(msgspec.Struct, frozen=True, eq=False):
    """The input of all clients of a replay.

    Attributes:
        socket: The daemon's control socket.
        trace: The trace.
        namespace: The namespace of the pages.
        keys: [blocks, 32]: the key of each block of the trace, by its number.
        page_bytes: The size of a page.
    """

    socket: Path
    trace: Trace
    namespace: Namespace
    keys: npt.NDArray[np.uint8]
    page_bytes: int


class Ready(msgspec.Struct, frozen=True):
    """The first message of a client.

    Attributes:
        attached: Whether it attached to the daemon.
    """

    attached: bool


def work(job: ReplayJob, pipe: Connection) -> None:
    """Runs one client until the pipe closes: sends Ready, then receives ranges of requests and sends their counts."""
    # Ctrl-C goes to all processes of a terminal. The parent ends this process by closing the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Client(job.socket, timeout=TIMEOUT_S, name="pagetier-replay") as client:
        replayer = Replayer(job, client)
        try:
            pipe.send(Ready(client.wait_attached(ATTACH_S)))
            while True:
                pipe.send(replayer.replay_all(pipe.recv()))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


class Replayer:
    """Replays requests as an engine would: matches, loads, and stores the whole prompt while its prefix is pinned.

    Pages on disk are loaded, but not pinned.
    """

    def __init__(self, job: ReplayJob, client: Client) -> None:
        self._job = job
        self._client = client
        self._pattern = Pattern(job.page_bytes)

    def replay_all(self, requests: range) -> ReplayCounts:
        """Replays requests in their order and returns their counts."""
        counts = ReplayCounts()
        for request in requests:
            self.replay(request, counts)
        return counts

    def replay(self, request: int, counts: ReplayCounts) -> None:
        """Replays one request and adds it to `counts`."""
        trace = self._job.trace
        blocks = trace.blocks(request)
        counts.requests += 1
        counts.prompt_tokens += int(trace.prompt_tokens[request])
        counts.asked += len(blocks)
        if len(blocks):
            self._handle(self._job.keys[blocks], counts)

    def _handle(self, rows: npt.NDArray[np.uint8], counts: ReplayCounts) -> None:
        keys = Keys(self._job.namespace, rows.tobytes())
        pages = self._pattern.of(rows)
        began = time.perf_counter()
        with self._client.match(keys) as match:
            matched = time.perf_counter()
            space = self._pattern.space(match.available_pages)
            asked = time.perf_counter()
            loaded = self._client.load(match, space) if match.available_pages else 0
            counts.load_seconds += time.perf_counter() - asked + matched - began
            counts.loaded += loaded
            counts.from_disk += match.from_disk
            counts.wrong += wrong_pages(space[:loaded], pages[:loaded])
            self._store(keys, pages, counts)

    def _store(self, keys: Keys, pages: npt.NDArray[np.uint64], counts: ReplayCounts) -> None:
        began = time.perf_counter()
        result = self._client.store(keys, pages)
        counts.store_seconds += time.perf_counter() - began
        counts.stored += result.stored
        counts.present += result.present
        counts.pending += result.pending
        counts.refused += result.refused
        counts.left_out += result.left_out


class RateLimit:
    """Limits the rate of steps. A rate of 0 is no limit. Missed steps are not made up for."""

    def __init__(self, per_second: int) -> None:
        self.limited = per_second > 0
        self._seconds = 1 / per_second if per_second else 0.0
        self._next = 0.0

    def wait(self) -> None:
        """Waits until the next step may begin."""
        if not self.limited:
            return
        now = clock.now()
        clock.sleep(max(0.0, self._next - now))
        self._next = max(now, self._next) + self._seconds


_BATCH: Final = 16
"""Requests of a batch: few, so that the clients stay close together and a dead one returns few requests."""
_QUEUED_BATCHES: Final = 2
"""Batches that are assigned to a client in advance, so that it does not wait for the next one."""
_END_S: Final = 10.0


class UnreachableError(Exception):
    """No daemon was found. The message has the socket and the timeout."""


class ClientPool:
    """A number of client processes, attached on entry and ended on exit of the context.

    Args:
        job: The input of all clients.
        clients: The number of clients.
        pace: Limits the rate of requests. With a limit each batch has one request.

    Raises:
        UnreachableError: A client cannot attach to the daemon.
    """

    def __init__(self, job: ReplayJob, clients: int, pace: RateLimit) -> None:
        self.deaths: list[str] = []
        self._workers: list[_ClientProcess] = []
        self._unassigned: deque[range] = deque()
        self._pace = pace
        try:
            self._start(job, clients)
        except BaseException:
            self.close()
            raise

    def replay(self, requests: int, progress: Callable[[int], None]) -> ReplayCounts:
        """Replays the first `requests` requests. The requests of a client that dies are assigned to the others.

        `progress` is called repeatedly with the number of replayed requests.

        Returns:
            The counts of all clients. They have fewer requests if all clients died.
        """
        total = ReplayCounts()
        batch = 1 if self._pace.limited else _BATCH
        self._unassigned.extend(range(at, min(at + batch, requests)) for at in range(0, requests, batch))
        while busy := self._assign_all():
            for pipe in wait([worker.pipe for worker in busy]):
                worker = next(worker for worker in busy if worker.pipe is pipe)
                self._receive(worker, total)
            progress(total.requests)
        return total

    def close(self) -> None:
        """Ends each client after its current request, or kills it after a timeout."""
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    def _start(self, job: ReplayJob, clients: int) -> None:
        for number in range(1, clients + 1):
            self._workers.append(_ClientProcess(job, number))
        for worker in list(self._workers):
            if not self._attached(worker):
                raise UnreachableError(f"{job.socket}: a client could not attach within {ATTACH_S:.0f} s")

    def _attached(self, worker: _ClientProcess) -> bool:
        """Returns whether a client is attached.

        A client that has died counts among the deaths, and this returns true.
        """
        try:
            ready = worker.pipe.recv()
        except (EOFError, OSError):
            self._remove_dead(worker)
            return True
        return isinstance(ready, Ready) and ready.attached

    def _assign_all(self) -> list[_ClientProcess]:
        """Assigns batches to clients that can take more. Returns the clients that have any."""
        for _ in range(_QUEUED_BATCHES):
            for worker in list(self._workers):
                if self._unassigned and len(worker.assigned) < _QUEUED_BATCHES:
                    self._assign(worker, self._unassigned.popleft())
        return [worker for worker in self._workers if worker.assigned]

    def _assign(self, worker: _ClientProcess, requests: range) -> None:
        self._pace.wait()
        worker.assigned.append(requests)
        try:
            worker.pipe.send(requests)
        except OSError:
            self._remove_dead(worker)

    def _receive(self, worker: _ClientProcess, total: ReplayCounts) -> None:
        try:
            total.add(worker.pipe.recv())
        except (EOFError, OSError):
            self._remove_dead(worker)
        else:
            worker.assigned.popleft()

    def _remove_dead(self, worker: _ClientProcess) -> None:
        self._workers.remove(worker)
        self._unassigned.extendleft(reversed(worker.assigned))
        worker.pipe.close()
        worker.end()
        self.deaths.append(worker.exit_description)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _ClientProcess:
    """One client's process.

    Attributes:
        pipe: The pipe to it.
        assigned: The batches that it has not completed.
    """

    def __init__(self, job: ReplayJob, number: int) -> None:
        # A spawned process inherits only its end of the pipe, so that the parent detects each death.
        context = get_context("spawn")
        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        self.assigned: deque[range] = deque()
        self._number = number
        self._process = context.Process(target=work, args=(job, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def end(self) -> None:
        """Waits for the process after its pipe was closed, and kills it after a timeout."""
        self._process.join(_END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    @property
    def exit_description(self) -> str:
        """How the process ended."""
        code = self._process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"client {self._number} (process {self._process.pid}) {how}"
