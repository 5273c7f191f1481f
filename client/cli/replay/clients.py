"""The clients of a replay: processes that are dealt requests as they get through them, and may die."""

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
from pagetier.client.cli.replay.report import ReplayCounts
from pagetier.client.cli.replay.trace import Trace
from pagetier.client.client import Client
from pagetier.client.keys import Keys, Namespace

ATTACH_S: Final = 10.0
TIMEOUT_S: Final = 30.0
"""A replay measures hits and not timeouts, those of the disk neither; a daemon that is gone refuses at once."""


class ReplayJob(msgspec.Struct, frozen=True, eq=False):
    """What all clients of a replay are told. keys: of each block of the trace, by its number, 32 bytes a row."""

    socket: Path
    trace: Trace
    namespace: Namespace
    keys: npt.NDArray[np.uint8]
    page_bytes: int


class Ready(msgspec.Struct, frozen=True):
    """A client's first word: whether it found the daemon."""

    attached: bool


def work(job: ReplayJob, pipe: Connection) -> None:
    """Ranges come in by the pipe; Ready and then a Tally for each range go out. Ends when the other end is closed."""
    # A Ctrl-C goes to all processes of a terminal; it is the parent who ends this one, by closing the pipe.
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
    """Does for each request what an engine would: match, load, and store the whole prompt while it is pinned.

    Loading brings in what is on disk; that is not pinned.
    """

    def __init__(self, job: ReplayJob, client: Client) -> None:
        self._job = job
        self._client = client
        self._pattern = Pattern(job.page_bytes)

    def replay_all(self, requests: range) -> ReplayCounts:
        """Replays requests in their order."""
        tally = ReplayCounts()
        for request in requests:
            self.replay(request, tally)
        return tally

    def replay(self, request: int, tally: ReplayCounts) -> None:
        """Replays one request and counts it."""
        trace = self._job.trace
        blocks = trace.blocks(request)
        tally.requests += 1
        tally.prompt_tokens += int(trace.prompt_tokens[request])
        tally.asked += len(blocks)
        if len(blocks):
            self._handle(self._job.keys[blocks], tally)

    def _handle(self, rows: npt.NDArray[np.uint8], tally: ReplayCounts) -> None:
        keys = Keys(self._job.namespace, rows.tobytes())
        pages = self._pattern.of(rows)
        began = time.perf_counter()
        with self._client.match(keys) as match:
            matched = time.perf_counter()
            space = self._pattern.space(match.available_pages)
            asked = time.perf_counter()
            loaded = self._client.load(match, space) if match.available_pages else 0
            tally.load_seconds += time.perf_counter() - asked + matched - began
            tally.loaded += loaded
            tally.from_disk += match.from_disk
            tally.wrong += wrong_pages(space[:loaded], pages[:loaded])
            self._store(keys, pages, tally)

    def _store(self, keys: Keys, pages: npt.NDArray[np.uint64], tally: ReplayCounts) -> None:
        began = time.perf_counter()
        result = self._client.store(keys, pages)
        tally.store_seconds += time.perf_counter() - began
        tally.stored += result.stored
        tally.present += result.present
        tally.pending += result.pending
        tally.refused += result.refused


class RateLimit:
    """So many steps a second at most, evenly; 0: as fast as it goes. Steps that were missed are not made up for."""

    def __init__(self, per_second: int) -> None:
        self.limited = per_second > 0
        self._seconds = 1 / per_second if per_second else 0.0
        self._next = 0.0

    def wait(self) -> None:
        """Waits until the next step may be taken."""
        if not self.limited:
            return
        now = time.monotonic()
        time.sleep(max(0.0, self._next - now))
        self._next = max(now, self._next) + self._seconds


_DEAL: Final = 16
"""Requests dealt at once: few, so that clients stay together and a dead one takes little with it."""
_AHEAD: Final = 2
"""Deals that a client has in hand, so that it need not wait for the next."""
_END_S: Final = 10.0


class UnreachableError(Exception):
    """There is no daemon to replay against; the message says what was tried."""


class Pool:
    """So many clients, started and attached; ended and gone when the context is left.

    pace: when requests may be dealt; a slow one is dealt one by one.

    Raises UnreachableError if one does not find the daemon.
    """

    def __init__(self, job: ReplayJob, clients: int, pace: RateLimit) -> None:
        self.deaths: list[str] = []
        self._living: list[_ClientProcess] = []
        self._todo: deque[range] = deque()
        self._pace = pace
        try:
            self._start(job, clients)
        except BaseException:
            self.close()
            raise

    def replay(self, requests: int, progress: Callable[[int], None]) -> ReplayCounts:
        """Replays the first `requests` requests; what a client that died had in hand is dealt to the others.

        `progress` is told how many were done, again and again. Ends early if all clients died.
        """
        total = ReplayCounts()
        deal = 1 if self._pace.limited else _DEAL
        self._todo.extend(range(at, min(at + deal, requests)) for at in range(0, requests, deal))
        while busy := self._deal():
            for pipe in wait([worker.pipe for worker in busy]):
                worker = next(worker for worker in busy if worker.pipe is pipe)
                self._hear(worker, total)
            progress(total.requests)
        return total

    def close(self) -> None:
        """Ends the clients: after the request that each is at, or by force."""
        for worker in self._living:
            worker.pipe.close()
        for worker in self._living:
            worker.end()
        self._living.clear()

    def _start(self, job: ReplayJob, clients: int) -> None:
        for number in range(1, clients + 1):
            self._living.append(_ClientProcess(job, number))
        for worker in list(self._living):
            if not self._attached(worker):
                raise UnreachableError(f"{job.socket}: a client found no daemon within {ATTACH_S:.0f} s")

    def _attached(self, worker: _ClientProcess) -> bool:
        """True also for one that died meanwhile: it is counted among the dead."""
        try:
            ready = worker.pipe.recv()
        except (EOFError, OSError):
            self._bury(worker)
            return True
        return isinstance(ready, Ready) and ready.attached

    def _deal(self) -> list[_ClientProcess]:
        """Gives out what there is to do; returns those who have something in hand."""
        for _ in range(_AHEAD):
            for worker in list(self._living):
                if self._todo and len(worker.in_hand) < _AHEAD:
                    self._give(worker, self._todo.popleft())
        return [worker for worker in self._living if worker.in_hand]

    def _give(self, worker: _ClientProcess, requests: range) -> None:
        self._pace.wait()
        worker.in_hand.append(requests)
        try:
            worker.pipe.send(requests)
        except OSError:
            self._bury(worker)

    def _hear(self, worker: _ClientProcess, total: ReplayCounts) -> None:
        try:
            total.add(worker.pipe.recv())
        except (EOFError, OSError):
            self._bury(worker)
        else:
            worker.in_hand.popleft()

    def _bury(self, worker: _ClientProcess) -> None:
        self._living.remove(worker)
        self._todo.extendleft(reversed(worker.in_hand))
        worker.pipe.close()
        worker.end()
        self.deaths.append(worker.epitaph)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _ClientProcess:
    """One client's process. in_hand: what it was dealt and has not answered."""

    def __init__(self, job: ReplayJob, number: int) -> None:
        # A spawned process has nothing of this one's but its end of the pipe, so that each death is seen.
        context = get_context("spawn")
        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        self.in_hand: deque[range] = deque()
        self._number = number
        self._process = context.Process(target=work, args=(job, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def end(self) -> None:
        """Waits for the process, whose pipe was closed; kills it if that takes too long."""
        self._process.join(_END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    @property
    def epitaph(self) -> str:
        """How it ended, when it has."""
        code = self._process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"client {self._number} (process {self._process.pid}) {how}"
