"""A stream queue: enqueues the copies of one direction, in order, on a stream, and follows them until they complete."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

from pagetier.client.async_copy.job import CopyJob, EventAlarm, Flight, Piece
from pagetier.client.async_copy.throttle import BandwidthCap, Rate
from pagetier.kernels.device import DeviceError, Stream
from pagetier.shm import clock
from pagetier.shm.safe_event import SafeCondition
from pagetier.shm.timed_get import get_in_time

log = logging.getLogger("pagetier.client")

_SHORTEST_S: Final = 50e-6
_LONGEST_S: Final = 1e-3
# Copies in flight on the streams of these queues may still run, although no thread follows them.
_abandoned: Final[list[StreamQueue]] = []


class StreamQueue:
    """The copies of one direction.

    Only step() uses the stream, in one thread at a time; the other methods are thread-safe.

    No wake-up is lost, so between two steps the thread sleeps until something changes. What step() looks at (a new job,
    a cancel, a response, an event, close()) is changed first, and then an element is put into the inbox; step() empties
    the inbox first, and then looks. So an element that step() has taken out was put after a change that this step sees,
    and an element that it has not taken out ends the next wait_for_work() at once. Of the events in flight only one
    puts an element: the first after which there is work. step() chooses it at its end, and looks once more whether it
    has come. What changes by time alone is in _pause(). A stream that cannot call after its events is polled.

    Attributes:
        broken: Why the device failed, or empty.
        now: Returns the time in seconds.
    """

    def __init__(self, stream: Stream, rate: Rate, cap: BandwidthCap, depth: int) -> None:
        self.broken = ""
        self.now = clock.now
        self._stream, self._rate, self._cap, self._depth = stream, rate, cap, depth
        self._inbox: SimpleQueue[CopyJob | None] = SimpleQueue()
        self._alarm = EventAlarm(partial(self._inbox.put, None))
        self._polls = not stream.call_after_events(self._alarm)
        self._waiting: list[CopyJob] = []
        self._open: deque[CopyJob] = deque()
        self._in_flight: deque[Flight] = deque()
        self._pieces_in_flight = 0
        self._kept: list[CopyJob] = []
        self._changed = SafeCondition()
        self._lock = self._changed.lock
        self._jobs: set[CopyJob] = set()
        self._leaving = False
        self._last_completed = -math.inf
        self._poll_interval = _SHORTEST_S

    def submit(self, job: CopyJob) -> bool:
        """Accepts a job. Returns False after close() and abort()."""
        job.set_waker(self)
        try:
            with self._lock:
                if self._leaving:
                    return False
                self._jobs.add(job)
                self._inbox.put(job)  # under the lock, so that abort() receives it after it has set _leaving
            return True
        except BaseException:  # an exception of a signal handler, before or after it was put
            if job in self._jobs:
                self._inbox.put(job)
            raise

    def wake(self) -> None:
        """Wakes the thread that calls step(). May be called by a finalizer."""
        self._inbox.put(None)

    def close(self) -> None:
        """Accepts no further jobs. Jobs that were accepted are finished."""
        self._leaving = True
        self.wake()

    def wait_idle(self, timeout: float) -> bool:
        """Waits until all jobs have ended or the device has failed, at most `timeout` seconds.

        Returns:
            Whether all jobs have ended and no copies are, or may be, in flight.
        """
        with self._lock:
            return self._changed.wait_for(lambda: not self._jobs, max(0.0, timeout)) and not self._kept

    @property
    def finished(self) -> bool:
        """Whether the queue is closed, all jobs have ended and none must be kept."""
        if not self._leaving:
            return False
        with self._lock:
            return not self._jobs and not self._kept

    def wait_for_work(self, seconds: float | None) -> None:
        """Waits for `seconds`, or until wake(). None waits for wake() only."""
        try:
            job = get_in_time(self._inbox, seconds)
        except Empty:
            return
        self._take(job)

    def step(self) -> float | None:
        """Returns the seconds until the next call, or None to wait for wake(), after doing all work that is possible.

        It waits only for the daemon to take a request that is larger than its socket buffer, for a moment.
        """
        self._receive()
        began = len(self._in_flight), len(self._waiting)
        if self.broken:
            self._fail_all(self.broken)
        else:
            self._advance()
        self._forget_ended()
        if not self._polls:
            self._alarm.set(self._in_flight)
        return self._pause(moved=began != (len(self._in_flight), len(self._waiting)))

    def abort(self, reason: str) -> None:
        """Ends the queue as after a failure of the device, for a thread that cannot continue.

        step() must not be called again. If copies are in flight, the stream is kept until the process ends.
        """
        with self._lock:
            self.broken, self._leaving = reason, True
        self._receive()
        self._fail_all(reason)
        self._forget_ended()
        if self._kept:
            _abandoned.append(self)

    def _advance(self) -> None:
        try:
            self._complete()
            self._prepare()
            self._launch()
        except DeviceError as error:
            log.warning("copying failed, further loads are misses and stores are rejected: %s", error)
            self._fail_all(str(error))

    def _receive(self) -> None:
        while not self._inbox.empty():
            self._take(self._inbox.get())

    def _take(self, job: CopyJob | None) -> None:
        """Takes a job that was submitted; None for wake(). Ignores one that submit() has put twice."""
        if job is not None and not job.taken:
            job.taken = True
            self._waiting.append(job)

    def _complete(self) -> None:
        """Completes the pieces whose event has come, and measures their speed if it can be measured."""
        now, nbytes, began, gated = self.now(), 0, math.inf, False
        while self._in_flight and self._in_flight[0].event.done():
            flight = self._in_flight.popleft()
            began = min(began, flight.launched)
            nbytes += flight.nbytes
            gated |= flight.job is None
            if flight.job is not None:
                self._pieces_in_flight -= 1
                flight.job.completed(math.inf if gated else max(flight.launched, self._last_completed), now)
        if nbytes and not gated:
            self._rate.record(nbytes, now - max(began, self._last_completed))
        if began < math.inf:
            self._last_completed = now

    def _prepare(self) -> None:
        now = self.now()
        if ready := [job for job in self._waiting if job.prepare(now)]:
            self._waiting = [job for job in self._waiting if job not in ready]
            self._open.extend(job for job in ready if not job.ended)

    def _launch(self) -> None:
        for job in [job for job in self._open if job.cancelled]:
            job.next()
            self._open.remove(job)
        while self._open and self._pieces_in_flight < self._depth and not self._cap.delay(self.now()):
            job = self._open[0]
            self._wait_for_engine(job)
            piece = job.next()
            if piece is None:
                self._open.popleft()
            else:
                self._enqueue(job, piece)

    def _wait_for_engine(self, job: CopyJob) -> None:
        after = job.take_after()
        if after is None:
            return
        try:
            self._stream.after(after)
        except ValueError as error:
            job.piece_failed(str(error))
        else:
            self._in_flight.append(Flight(None, self._stream.record(), 0, self.now()))

    def _enqueue(self, job: CopyJob, piece: Piece) -> None:
        now = self.now()
        try:
            for copy in piece.copies:
                self._stream.enqueue(copy)
        except ValueError as error:
            job.piece_failed(str(error))  # copies that were enqueued before must still complete
        event = self._stream.record()
        self._in_flight.append(Flight(job, event, piece.nbytes, now))
        self._pieces_in_flight += 1
        self._cap.spend(piece.nbytes, now)
        job.enqueued(event)

    def _fail_all(self, reason: str) -> None:
        """Fails all jobs. Pages in flight are never published or released, because the device may still copy them."""
        self.broken = reason
        in_flight = [flight.job for flight in self._in_flight if flight.job is not None]
        jobs = dict.fromkeys([*in_flight, *self._open, *self._waiting])
        self._waiting, self._open, self._in_flight = [], deque(), deque()
        lost = [job for job in jobs if job.device_failed(reason)]
        with self._lock:
            self._kept += lost
            self._jobs.difference_update(lost)

    def _forget_ended(self) -> None:
        with self._lock:
            ended = [job for job in self._jobs if job.ended]
            self._jobs.difference_update(ended)
            for job in ended:
                job.set_waker(None)  # so that a handle that is kept does not keep its stream
            if not self._jobs:
                self._changed.wake_all()

    def _pause(self, *, moved: bool) -> float | None:
        """Returns the seconds after which there may be work without a wake-up, or None if there is none."""
        now = self.now()
        pauses = [job.retry_after(now) for job in self._waiting]
        if self._open and self._pieces_in_flight < self._depth:
            pauses.append(self._cap.delay(now))
        if self._in_flight and self._polls:
            self._poll_interval = _SHORTEST_S if moved else min(2 * self._poll_interval, _LONGEST_S)
            pauses.append(self._poll_interval)
        return min(pauses, default=None)


Drive: TypeAlias = Callable[[StreamQueue, str], object]
"""Makes sure that the step() of a queue is called, under a name, until the queue is over."""


def in_thread(queue: StreamQueue, name: str) -> threading.Thread:
    """Returns a thread that calls step() until the queue is over, or the process ends."""
    thread = threading.Thread(target=_run, args=(queue,), name=name, daemon=True)
    thread.start()
    return thread


def _run(queue: StreamQueue) -> None:
    reason = "the copy thread has ended"
    try:
        pause = queue.step()
        while not queue.finished:
            queue.wait_for_work(pause)
            pause = queue.step()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise
    finally:
        if not queue.finished:
            queue.abort(reason)
