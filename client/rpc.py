"""Requests to the daemon and their responses: sending, waiting with a timeout, and noticing a daemon that is late.

Threads that wait for a response read the socket themselves, one of them for all. The client's background thread reads
only while some response has no waiting thread (a stray): it is not waited for yet, or no longer.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from pagetier.shm._core import Session
from pagetier.shm.daemon_link import Link, LinkError
from pagetier.shm.failpoints import point
from pagetier.shm.protocol import Answer, Fetched, Flushed, Request, Reserved

log = logging.getLogger("pagetier.client")

_LONGEST_S = 1e6
_SILENT_S = 0.5  # seconds of silence after which a late response is logged
_READ_S = 0.1
_T = TypeVar("_T")


class LinkedSession(msgspec.Struct, frozen=True, eq=False):
    """A connection, the session whose memory its requests are about, and the pages granted to that session.

    Attributes:
        link: The connection.
        session: The mapped segments.
        granted: The serials of the granted pages, shared by all threads that write or release such pages. It is changed
            by single method calls only, which are atomic for other threads. So it needs no lock, and a forked child
            cannot inherit a lock that is taken.
    """

    link: Link
    session: Session
    granted: set[int]


class PendingRequest(ABC, Generic[_T]):
    """A response that the daemon owes. Members with an underscore are used by Requests, under its lock.

    Attributes:
        pages: The number of pages in the request.
    """

    def __init__(self, requests: Requests, linked: LinkedSession | None, pages: int) -> None:
        self.pages = pages
        self._requests = requests
        self._link = linked.link if linked else None
        self._due = math.inf  # time.monotonic() by which a healthy daemon has answered, if the request has a time limit
        self._answer: _T | None = None
        self._done = False
        self._collected = False
        self._stray = False
        self._overdue = False
        self._unsent = False

    @property
    def unsent(self) -> bool:
        """Whether the request could not be sent over this connection: the daemon never receives it."""
        return self._unsent

    @property
    def ready(self) -> bool:
        """Whether wait() returns at once."""
        return self._done

    @abstractmethod
    def _daemon_is_late(self) -> bool:
        """Returns whether the daemon is so late with other responses that this request is not sent."""

    @abstractmethod
    def _accept(self, answer: Answer) -> bool:
        """Stores the response and returns True; returns False for a response of another type."""

    @abstractmethod
    def _fail(self, reason: str) -> None:
        """Records that no response will come."""


class Requests:
    """The open requests of one client in one process. Thread-safe."""

    def __init__(self) -> None:
        # Reentrant, since a dropped PendingReservation may be finalized at any point of the thread that has the lock.
        self._lock = threading.Condition(threading.RLock())
        self._reading = False
        self._numbers = itertools.count(1)
        self._waiting: dict[int, PendingRequest[Any]] = {}
        self._overdue = 0
        self._strays = 0
        self._last_answer = 0.0
        self._silent_since = 0.0
        self._logged = False
        self._pid = os.getpid()

    @property
    def foreign(self) -> bool:
        """Whether these requests are the parent's, seen from a forked child, which must not take their locks."""
        return self._pid != os.getpid()

    @property
    def is_late(self) -> bool:
        """Whether a response that needs no disk is overdue."""
        return self._overdue > 0

    @property
    def is_late_with_disk(self) -> bool:
        """Whether a response is past its time limit, and the daemon has sent nothing since that limit."""
        now = time.monotonic()
        with self._lock:
            return any(self._last_answer < pending._due < now for pending in self._waiting.values())

    def ask(
        self,
        linked: LinkedSession | None,
        request: Callable[[int], Request],
        pending: PendingRequest[_T],
        timeout: float,
    ) -> None:
        """Sends a request and returns without waiting for the response. Never raises.

        If the request cannot be sent, or the daemon is late with others, `pending` fails at once.

        Args:
            linked: The connection to send over; None if there is none.
            request: Makes the request from its number.
            pending: Receives the response.
            timeout: Seconds for sending.
        """
        if linked is None:
            return _fail(pending, "no daemon is attached")
        number = next(self._numbers)
        if not self._register(number, pending):
            return _fail(pending, "the daemon does not answer")
        try:
            linked.link.send(request(number), timeout)
            point("client.asked")
        except LinkError as error:
            with self._lock:
                self._waiting.pop(number, None)
            pending._unsent = True
            _fail(pending, str(error))

    def leave(self, pending: PendingRequest[_T]) -> None:
        """Leaves the response to the background thread, because no thread waits for it now."""
        with self._lock:
            if pending._link is None or pending._done or pending._stray:
                return
            pending._stray = True
            self._strays += 1
            pending._link.expect_stray()

    def wait(self, pending: PendingRequest[_T], timeout: float) -> None:
        """Waits until there is a response, at most `timeout` seconds. One of the waiting threads reads for all."""
        ends = time.monotonic() + clamp_timeout(timeout)
        link = pending._link
        with self._lock:
            while not pending._done and (left := ends - time.monotonic()) > 0:
                if self._reading or link is None:
                    self._lock.wait(left)
                    continue
                try:
                    # Not longer: close() fails what is open, but cannot wake a thread that waits for the socket.
                    self._read(link, min(left, _READ_S))
                except LinkError:
                    link = None  # the background thread notices it too, and fails all open requests

    def pump(self, link: Link) -> None:
        """Reads responses that have arrived, unless another thread reads. For the background thread.

        Raises LinkError at the end of the connection.
        """
        with self._lock:
            if not self._reading:
                self._read(link, 0.0)
        self.log_silence()

    def collect(self, pending: PendingRequest[_T], waited: float) -> _T | None:
        """Returns the response, or None if there is none yet. Only the first call gets it.

        A response that comes later finds the request marked as collected.

        Args:
            pending: The request.
            waited: The seconds that the daemon had for a response that needs no disk, or 0. If they were not enough,
                further requests fail at once until the daemon answers: one caller waits for a hanging daemon, not every
                caller.
        """
        with self._lock:
            answer, pending._answer = pending._answer, None
            if answer is None and not pending._collected:
                self.leave(pending)
                self._mark_overdue(pending, waited)
            pending._collected = True
        return answer

    def fail_all(self) -> None:
        """Fails all open requests, because the connection is closed."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            self._overdue = self._strays = 0
            self._logged = False
            for pending in waiting.values():
                _fail(pending, "the daemon is gone")
            self._lock.notify_all()

    def log_silence(self) -> None:
        """Logs when the daemon has been silent for a while, and when it answers again.

        The caller must not have the lock: writing a log may wait for a thread that waits for the lock.
        """
        if not self._overdue and not self._logged:
            return
        with self._lock:
            silent = self._overdue > 0 and (self._logged or time.monotonic() - self._silent_since > _SILENT_S)
            changed, self._logged = silent != self._logged, silent
        if changed and silent:
            log.warning("the daemon does not answer; stores are rejected until it does")
        elif changed:
            log.info("the daemon answers again")

    def _register(self, number: int, pending: PendingRequest[_T]) -> bool:
        """Registers the request, unless the daemon is late with earlier ones. Returns whether it did."""
        with self._lock:
            if not pending._daemon_is_late():
                self._waiting[number] = pending
                return True
        self.log_silence()
        return False

    def _read(self, link: Link, seconds: float) -> None:
        """Reads once, without the lock, which the caller has taken once.

        Raises LinkError at the end of the connection.
        """
        answers: list[Answer] = []
        self._reading = True
        self._lock.release()
        try:
            answers = link.read(seconds)
        finally:
            self._lock.acquire()
            self._reading = False
            for answer in answers:
                self._deliver(answer)
            self._lock.notify_all()

    def _deliver(self, answer: Answer) -> None:
        """Delivers a response to its request. The caller has the lock."""
        self._last_answer = time.monotonic()
        if not isinstance(answer, (Reserved, Fetched, Flushed)):
            return
        pending = self._waiting.get(answer.number)
        if pending is None or not pending._accept(answer):
            return
        del self._waiting[answer.number]
        point("client.answered")
        pending._done = True
        self._overdue -= pending._overdue
        self._strays -= pending._stray
        if pending._stray and not self._strays and pending._link is not None:
            pending._link.expect_no_stray()

    def _mark_overdue(self, pending: PendingRequest[_T], waited: float) -> None:
        if waited > 0:
            self._silent_since = self._silent_since if self._overdue else time.monotonic() - waited
            pending._overdue = True
            self._overdue += 1


def clamp_timeout(seconds: float) -> float:
    """Returns `seconds` limited to the range that locks and sockets accept."""
    return min(max(0.0, seconds), _LONGEST_S)


def _fail(pending: PendingRequest[_T], reason: str) -> None:
    pending._fail(reason)
    pending._done = True
