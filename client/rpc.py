"""Requests on their way: sent over a link, answered to who waits for them, given up at a timeout.

Who waits reads the link himself, for all who wait. The keeper reads where there are strays: requests that nobody
waits for, not yet or not any more.
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
_SILENT_S = 0.5  # from when on a late answer is worth a line in the log
_READ_S = 0.1
_T = TypeVar("_T")


class LinkedSession(msgspec.Struct, frozen=True, eq=False):
    """A link, the session whose memory it is about, and the serials of the pages that are granted to that session.

    held is shared by all who write or let go of such pages. It is only changed by single calls of its methods, which
    other threads see whole: no lock is needed, and a forked child can not inherit one that is taken.
    """

    link: Link
    session: Session
    held: set[int]


class PendingRequest(ABC, Generic[_T]):
    """One answer that the daemon owes. What begins with an underscore is for Requests, under its guard.

    pages: how many were asked about.
    """

    def __init__(self, requests: Requests, attachment: LinkedSession | None, pages: int) -> None:
        self.pages = pages
        self._requests = requests
        self._link = attachment.link if attachment else None
        self._due = math.inf  # time.monotonic() when a daemon that is well has answered, where it was told by when
        self._answer: _T | None = None
        self._done = False
        self._collected = False
        self._stray = False
        self._overdue = False
        self._unsent = False

    @property
    def unsent(self) -> bool:
        """Whether it could not be sent, now or with this link: the daemon never sees it."""
        return self._unsent

    @property
    def ready(self) -> bool:
        """Whether wait() returns at once."""
        return self._done

    @abstractmethod
    def _hopeless(self) -> bool:
        """Whether the daemon need not be asked, as it owes others their answers."""

    @abstractmethod
    def _take(self, answer: Answer) -> bool:
        """Takes what came with its number; False if that is no answer to it."""

    @abstractmethod
    def _fail(self, reason: str) -> None:
        """No answer will come."""


class Requests:
    """The requests of one client in one process."""

    def __init__(self) -> None:
        # Reentrant, as the end of a dropped Promise may come at any point of the same thread.
        self._guard = threading.Condition(threading.RLock())
        self._reading = False
        self._numbers = itertools.count(1)
        self._waiting: dict[int, PendingRequest[Any]] = {}
        self._overdue = 0
        self._strays = 0
        self._heard = 0.0
        self._silent_since = 0.0
        self._told = False
        self._pid = os.getpid()

    @property
    def foreign(self) -> bool:
        """Whether these are the parent's, seen from a forked child: no lock of theirs may be taken there."""
        return self._pid != os.getpid()

    @property
    def owes_at_once(self) -> bool:
        """Whether somebody waited in vain for what the daemon answers at once, and still does."""
        return self._overdue > 0

    @property
    def overstays(self) -> bool:
        """Whether the daemon let a time pass by which it was to answer, and was not heard of since."""
        now = time.monotonic()
        with self._guard:
            return any(self._heard < owed._due < now for owed in self._waiting.values())

    def ask(
        self, to: LinkedSession | None, request: Callable[[int], Request], owed: PendingRequest[_T], timeout: float
    ) -> None:
        """Sends without waiting for the answer. Never raises: what can not be sent has failed."""
        if to is None:
            return _fail(owed, "no daemon is attached")
        number = next(self._numbers)
        if not self._expect(number, owed):
            return _fail(owed, "the daemon does not answer")
        try:
            to.link.send(request(number), timeout)
            point("client.asked")
        except LinkError as error:
            with self._guard:
                self._waiting.pop(number, None)
            owed._unsent = True
            _fail(owed, str(error))

    def leave(self, owed: PendingRequest[_T]) -> None:
        """Nobody waits for this answer, not yet or not any more: the keeper reads it."""
        with self._guard:
            if owed._link is None or owed._done or owed._stray:
                return
            owed._stray = True
            self._strays += 1
            owed._link.expect_stray()

    def wait(self, owed: PendingRequest[_T], timeout: float) -> None:
        """Until there is an answer, or `timeout` seconds. One of those who wait reads, for all of them."""
        ends = time.monotonic() + patience(timeout)
        link = owed._link
        with self._guard:
            while not owed._done and (left := ends - time.monotonic()) > 0:
                if self._reading or link is None:
                    self._guard.wait(left)
                    continue
                try:
                    # Not longer: close() fails what is open, but cannot wake a thread that waits for the socket.
                    self._read(link, min(left, _READ_S))
                except LinkError:
                    link = None  # the keeper sees the end, too, and fails what is open

    def pump(self, link: Link) -> None:
        """Reads what is there, unless somebody else does. For the keeper. Raises LinkError at the end of the link."""
        with self._guard:
            if not self._reading:
                self._read(link, 0.0)
        self.tell()

    def collect(self, owed: PendingRequest[_T], waited: float) -> _T | None:
        """What was answered by now, for the first who asks; an answer that comes later finds itself collected.

        waited: seconds that the daemon was given to answer at once. Where some were not enough, it is not asked for
        the like until it answers: one caller waits for a daemon that hangs, not all.
        """
        with self._guard:
            answer, owed._answer = owed._answer, None
            if answer is None and not owed._collected:
                self.leave(owed)
                self._miss(owed, waited)
            owed._collected = True
        return answer

    def lost(self) -> None:
        """The link is closed: no answer comes any more."""
        with self._guard:
            waiting, self._waiting = self._waiting, {}
            self._overdue = self._strays = 0
            self._told = False
            for owed in waiting.values():
                _fail(owed, "the daemon is gone")
            self._guard.notify_all()

    def tell(self) -> None:
        """One line in the log when the daemon has been silent for a while, and one when it speaks again.

        The caller must not have the guard: who writes a log may have to wait for somebody who waits for the guard.
        """
        if not self._overdue and not self._told:
            return
        with self._guard:
            silent = self._overdue > 0 and (self._told or time.monotonic() - self._silent_since > _SILENT_S)
            news, self._told = silent != self._told, silent
        if news and silent:
            log.warning("the daemon does not answer; stores are refused until it does")
        elif news:
            log.info("the daemon answers again")

    def _expect(self, number: int, owed: PendingRequest[_T]) -> bool:
        """False while asking is hopeless."""
        with self._guard:
            if not owed._hopeless():
                self._waiting[number] = owed
                return True
        self.tell()
        return False

    def _read(self, link: Link, seconds: float) -> None:
        """Reads once, without the guard, which the caller has, once. Raises LinkError at the end of the link."""
        answers: list[Answer] = []
        self._reading = True
        self._guard.release()
        try:
            answers = link.read(seconds)
        finally:
            self._guard.acquire()
            self._reading = False
            for answer in answers:
                self._take(answer)
            self._guard.notify_all()

    def _take(self, answer: Answer) -> None:
        """An answer came in. The caller has the guard."""
        self._heard = time.monotonic()
        if not isinstance(answer, (Reserved, Fetched, Flushed)):
            return
        owed = self._waiting.get(answer.number)
        if owed is None or not owed._take(answer):
            return
        del self._waiting[answer.number]
        point("client.answered")
        owed._done = True
        self._overdue -= owed._overdue
        self._strays -= owed._stray
        if owed._stray and not self._strays and owed._link is not None:
            owed._link.expect_no_stray()

    def _miss(self, owed: PendingRequest[_T], waited: float) -> None:
        if waited > 0:
            self._silent_since = self._silent_since if self._overdue else time.monotonic() - waited
            owed._overdue = True
            self._overdue += 1


def patience(seconds: float) -> float:
    """Seconds to wait, in the range that locks and sockets take."""
    return min(max(0.0, seconds), _LONGEST_S)


def _fail(owed: PendingRequest[_T], reason: str) -> None:
    owed._fail(reason)
    owed._done = True
