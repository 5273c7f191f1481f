"""The clients of a replay: processes that are dealt requests as they get through them, and may die."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Final, Self

from pagetier.client.cli.replay.client_process import ATTACH_S, Job, Ready, work
from pagetier.client.cli.replay.rate_limit import Pace
from pagetier.client.cli.replay.report import Tally

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

    def __init__(self, job: Job, clients: int, pace: Pace) -> None:
        self.deaths: list[str] = []
        self._living: list[_Worker] = []
        self._todo: deque[range] = deque()
        self._pace = pace
        try:
            self._start(job, clients)
        except BaseException:
            self.close()
            raise

    def replay(self, requests: int, progress: Callable[[int], None]) -> Tally:
        """Replays the first `requests` requests; what a client that died had in hand is dealt to the others.

        `progress` is told how many were done, again and again. Ends early if all clients died.
        """
        total = Tally()
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

    def _start(self, job: Job, clients: int) -> None:
        for number in range(1, clients + 1):
            self._living.append(_Worker(job, number))
        for worker in list(self._living):
            if not self._attached(worker):
                raise UnreachableError(f"{job.socket}: a client found no daemon within {ATTACH_S:.0f} s")

    def _attached(self, worker: _Worker) -> bool:
        """True also for one that died meanwhile: it is counted among the dead."""
        try:
            ready = worker.pipe.recv()
        except (EOFError, OSError):
            self._bury(worker)
            return True
        return isinstance(ready, Ready) and ready.attached

    def _deal(self) -> list[_Worker]:
        """Gives out what there is to do; returns those who have something in hand."""
        for _ in range(_AHEAD):
            for worker in list(self._living):
                if self._todo and len(worker.in_hand) < _AHEAD:
                    self._give(worker, self._todo.popleft())
        return [worker for worker in self._living if worker.in_hand]

    def _give(self, worker: _Worker, requests: range) -> None:
        self._pace.wait()
        worker.in_hand.append(requests)
        try:
            worker.pipe.send(requests)
        except OSError:
            self._bury(worker)

    def _hear(self, worker: _Worker, total: Tally) -> None:
        try:
            total.add(worker.pipe.recv())
        except (EOFError, OSError):
            self._bury(worker)
        else:
            worker.in_hand.popleft()

    def _bury(self, worker: _Worker) -> None:
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


class _Worker:
    """One client's process. in_hand: what it was dealt and has not answered."""

    def __init__(self, job: Job, number: int) -> None:
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
