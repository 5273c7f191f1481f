"""Copies one way: enqueued in order on a stream of their own, and looked after until their events have come."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

import msgspec

from pagetier.client.async_copy.job import CopyJob, Piece
from pagetier.client.async_copy.throttle import BandwidthCap, Rate
from pagetier.kernels.device import DeviceError, Event, Stream

log = logging.getLogger("pagetier.client")

_SHORTEST_S: Final = 50e-6
_LONGEST_S: Final = 1e-3
_given_up: Final[list[StreamQueue]] = []  # what is in flight on their streams goes on, though nobody looks after it


class Flight(msgspec.Struct, frozen=True, eq=False):
    """A piece that was enqueued at some time. Without a job: the point where the copies of one begin."""

    job: CopyJob | None
    event: Event
    nbytes: int
    launched: float


class StreamQueue:
    """All that is done with a stream is done in step(), by one thread at a time; the rest is for any thread.

    depth: pieces that are in flight at most. clock: seconds, as time.monotonic. broken: why the device failed; or
    empty.
    """

    def __init__(
        self, stream: Stream, rate: Rate, pace: BandwidthCap, depth: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.broken = ""
        self.clock = clock
        self._stream, self._rate, self._pace, self._depth = stream, rate, pace, depth
        self._inbox: SimpleQueue[CopyJob | None] = SimpleQueue()
        self._waiting: list[CopyJob] = []
        self._open: deque[CopyJob] = deque()
        self._flying: deque[Flight] = deque()
        self._aloft = 0
        self._kept: list[CopyJob] = []
        self._changed = threading.Condition()
        self._jobs: set[CopyJob] = set()
        self._leaving = False
        self._seen = -math.inf
        self._patience = _SHORTEST_S

    def submit(self, job: CopyJob) -> bool:
        """Takes a job on; False after close() and abort()."""
        job.carried_by(self)
        with self._changed:
            if self._leaving:
                return False
            self._jobs.add(job)
            self._inbox.put(job)  # before who sets _leaving looks there for the last time
        return True

    def wake(self) -> None:
        """There may be something to do. Also for who comes from collecting garbage."""
        self._inbox.put(None)

    def close(self) -> None:
        """Takes no more jobs. Those that it has it carries out."""
        self._leaving = True
        self.wake()

    def wait_idle(self, timeout: float) -> bool:
        """Waits until all jobs have ended, or the device has failed; whether nothing is, or may be, in flight."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs, max(0.0, timeout)) and not self._kept

    @property
    def over(self) -> bool:
        """Whether there is nothing to do for ever, and nothing to be kept."""
        with self._changed:
            return self._leaving and not self._jobs and not self._kept

    def rest(self, seconds: float | None) -> None:
        """Waits so long, or until wake(). None: until then."""
        try:
            job = self._inbox.get(timeout=seconds)
        except Empty:
            return
        if job is not None:
            self._waiting.append(job)

    def step(self) -> float | None:
        """Does what can be done now. Seconds until it wants to be called again; None: not before wake().

        Waits for nobody, but a moment for the daemon to take a request that is larger than its socket.
        """
        self._receive()
        began = len(self._flying), len(self._waiting)
        if self.broken:
            self._break(self.broken)
        else:
            self._advance()
        self._forget_ended()
        return self._pause(moved=began != (len(self._flying), len(self._waiting)))

    def abort(self, reason: str) -> None:
        """As if the device had failed: for a thread that can not go on. step() is not called again.

        With what is in flight its stream is kept until the process ends.
        """
        with self._changed:
            self.broken, self._leaving = reason, True
        self._receive()
        self._break(reason)
        self._forget_ended()
        if self._kept:
            _given_up.append(self)

    def _advance(self) -> None:
        try:
            self._land()
            self._prepare()
            self._launch()
        except DeviceError as error:
            log.warning("copies are not possible any more: %s", error)
            self._break(str(error))

    def _receive(self) -> None:
        while not self._inbox.empty():
            job = self._inbox.get()
            if job is not None:
                self._waiting.append(job)

    def _land(self) -> None:
        """Those whose event has come, and how fast they were, where that can be told."""
        now, nbytes, began, gated = self.clock(), 0, math.inf, False
        while self._flying and self._flying[0].event.done():
            flight = self._flying.popleft()
            began = min(began, flight.launched)
            nbytes += flight.nbytes
            gated |= flight.job is None
            if flight.job is not None:
                self._aloft -= 1
                flight.job.landed()
        if nbytes and not gated:
            self._rate.note(nbytes, now - max(began, self._seen))
        if began < math.inf:
            self._seen = now

    def _prepare(self) -> None:
        now = self.clock()
        ready = [job for job in self._waiting if job.prepare(now)]
        self._waiting = [job for job in self._waiting if job not in ready]
        self._open.extend(job for job in ready if not job.ended)

    def _launch(self) -> None:
        for job in [job for job in self._open if job.cancelled]:
            job.next()
            self._open.remove(job)
        while self._open and self._aloft < self._depth and not self._pace.delay(self.clock()):
            job = self._open[0]
            self._gate(job)
            piece = job.next()
            if piece is None:
                self._open.popleft()
            else:
                self._enqueue(job, piece)

    def _gate(self, job: CopyJob) -> None:
        after = job.take_after()
        if after is None:
            return
        try:
            self._stream.after(after)
        except ValueError as error:
            job.spoil(str(error))
        else:
            self._flying.append(Flight(None, self._stream.record(), 0, self.clock()))

    def _enqueue(self, job: CopyJob, piece: Piece) -> None:
        now = self.clock()
        try:
            for copy in piece.copies:
                self._stream.enqueue(copy)
        except ValueError as error:
            job.spoil(str(error))  # what was enqueued before has to land all the same
        event = self._stream.record()
        self._flying.append(Flight(job, event, piece.nbytes, now))
        self._aloft += 1
        self._pace.spend(piece.nbytes, now)
        job.launched(event)

    def _break(self, reason: str) -> None:
        """Whatever is in flight is never published and never given back: it may be copied at any time from now on."""
        self.broken = reason
        flying = [flight.job for flight in self._flying if flight.job is not None]
        jobs = dict.fromkeys([*flying, *self._open, *self._waiting])
        self._waiting, self._open, self._flying = [], deque(), deque()
        lost = [job for job in jobs if job.fail(reason)]
        with self._changed:
            self._kept += lost
            self._jobs.difference_update(lost)

    def _forget_ended(self) -> None:
        with self._changed:
            ended = [job for job in self._jobs if job.ended]
            self._jobs.difference_update(ended)
            for job in ended:
                job.carried_by(None)  # who keeps a store does not keep its stream
            if not self._jobs:
                self._changed.notify_all()

    def _pause(self, *, moved: bool) -> float | None:
        if not (self._flying or self._waiting or self._open):
            self._patience = _SHORTEST_S
            return None
        self._patience = _SHORTEST_S if moved else min(2 * self._patience, _LONGEST_S)
        return self._patience


Drive: TypeAlias = Callable[[StreamQueue, str], object]
"""Sees to it that a lane's step() is called, under some name, until the lane is over."""


def in_thread(lane: StreamQueue, name: str) -> threading.Thread:
    """A thread of its own, which ends when the lane is over, or with the process."""
    thread = threading.Thread(target=_run, args=(lane,), name=name, daemon=True)
    thread.start()
    return thread


def _run(lane: StreamQueue) -> None:
    reason = "the thread that copies has ended"
    try:
        pause = lane.step()
        while not lane.over:
            lane.rest(pause)
            pause = lane.step()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise
    finally:
        if not lane.over:
            lane.abort(reason)
