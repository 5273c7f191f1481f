"""Requests for room on their way: sent over a link, answered to who waits for them, given up at a deadline.

Who waits reads the link himself, for all who wait. The keeper reads where there are strays: requests that nobody
waits for, not yet or not any more.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable

import msgspec

from ..shm._core import Session
from ..shm.link import Link, LinkError
from ..shm.protocol import Answer, Reserve, Reserved
from .store import Answered, Part, Reservation

log = logging.getLogger("pagetier.client")

_SILENT_S = 0.5  # from when on a late answer is worth a line in the log


class Attachment(msgspec.Struct, frozen=True, eq=False):
    """A link, the session whose memory it is about, and the serials of the pages that are granted to that session.

    held is shared by all who write or let go of such pages. It is only changed by single calls of its methods, which
    other threads see whole: no lock is needed, and a forked child can not inherit one that is taken.
    """

    link: Link
    session: Session
    held: set[int]


class Promise:
    """Room that was asked for. Collect it with wait(), or cancel(); who drops it cancels.

    Made by Client.reserve_soon. From any thread; in a forked child it is refused.
    """

    def __init__(self, requests: Requests, attachment: Attachment | None, part: Part, pages: int) -> None:
        self.part = part
        self.pages = pages
        self._requests = requests
        self._link = attachment.link if attachment else None
        self._session = attachment.session if attachment else None
        self._held = attachment.held if attachment else set()
        self._answer: Answered | None = None
        self._done = False
        self._collected = False
        self._stray = False
        self._overdue = False

    @property
    def ready(self) -> bool:
        """Whether wait() returns at once."""
        return self._done

    def wait(self, deadline: float) -> Reservation:
        """The reservation, once; after `deadline` seconds without an answer every page of it is refused."""
        if self._requests.foreign:
            return self._collect(0.0)
        self._requests.wait(self, deadline)
        reservation = self._collect(deadline)
        self._requests.tell()
        return reservation

    def cancel(self) -> None:
        """Gives up what was or will be granted. Does nothing after wait()."""
        self._collect(0.0).abandon()

    def _collect(self, waited: float) -> Reservation:
        return Reservation(self._session, self._held, self._requests.collect(self, waited), self.part)

    def __del__(self) -> None:
        self.cancel()

    def __repr__(self) -> str:
        state = "collected" if self._collected else "ready" if self.ready else "asked"
        return f"<Promise of {self.pages} pages, {state}>"


class Requests:
    """The requests of one client in one process."""

    def __init__(self) -> None:
        # Reentrant, as the end of a dropped Promise may come at any point of the same thread.
        self._guard = threading.Condition(threading.RLock())
        self._reading = False
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Promise] = {}
        self._overdue = 0
        self._strays = 0
        self._silent_since = 0.0
        self._told = False
        self._pid = os.getpid()

    @property
    def foreign(self) -> bool:
        """Whether these are the parent's, seen from a forked child: no lock of theirs may be taken there."""
        return self._pid != os.getpid()

    def ask(
        self, to: Attachment | None, request: Callable[[int], Reserve], promise: Promise, deadline: float
    ) -> Promise:
        """Sends without waiting for the answer. Never raises: what can not be sent is refused."""
        if to is None:
            return _refuse(promise, "no daemon is attached")
        number = next(self._numbers)
        if not self._expect(number, promise):
            return _refuse(promise, "the daemon does not answer")
        try:
            to.link.send(request(number), deadline)
        except LinkError as error:
            with self._guard:
                self._waiting.pop(number, None)
            _refuse(promise, str(error))
        return promise

    def leave(self, promise: Promise) -> None:
        """Nobody waits for this answer, not yet or not any more: the keeper reads it."""
        with self._guard:
            if promise._link is None or promise._done or promise._stray:
                return
            promise._stray = True
            self._strays += 1
            promise._link.expect_stray()

    def wait(self, promise: Promise, deadline: float) -> None:
        """Until the promise is answered, or `deadline` seconds. One of those who wait reads, for all of them."""
        ends = time.monotonic() + deadline
        link = promise._link
        with self._guard:
            while not promise._done and (left := ends - time.monotonic()) > 0:
                if self._reading or link is None:
                    self._guard.wait(left)
                    continue
                try:
                    self._read(link, left)
                except LinkError:
                    link = None  # the keeper sees the end, too, and refuses what is open

    def pump(self, link: Link) -> None:
        """Reads what is there, unless somebody else does. For the keeper. Raises LinkError at the end of the link."""
        with self._guard:
            if not self._reading:
                self._read(link, 0.0)
        self.tell()

    def collect(self, promise: Promise, waited: float) -> Answered:
        """What was answered by now, for the first who asks; the pages of an answer that comes later are given up.

        waited: seconds that the daemon was given. Where some were not enough, it is asked no more until it answers:
        one caller waits for a daemon that hangs, not all.
        """
        if self.foreign:
            return Answered.refused(promise.pages, "it was asked for in another process")
        with self._guard:
            answer, promise._answer = promise._answer, None
            if answer is None and not promise._collected:
                self.leave(promise)
                self._miss(promise, waited)
            promise._collected = True
        return answer or Answered.refused(promise.pages, "the daemon did not answer in time")

    def lost(self) -> None:
        """The link is closed: no answer comes any more."""
        with self._guard:
            waiting, self._waiting = self._waiting, {}
            self._overdue = self._strays = 0
            self._told = False
            for promise in waiting.values():
                _refuse(promise, "the daemon is gone")
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

    def _expect(self, number: int, promise: Promise) -> bool:
        """False while the daemon owes an answer that somebody waited for in vain."""
        with self._guard:
            if not self._overdue:
                self._waiting[number] = promise
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
        if not isinstance(answer, Reserved) or answer.number not in self._waiting:
            return
        promise = self._waiting.pop(answer.number)
        told = Answered(answer.outcomes, answer.entries, answer.serials, answer.reason)
        promise._held.update(told.granted_serials)
        promise._answer = told
        promise._done = True
        self._overdue -= promise._overdue
        self._strays -= promise._stray
        if promise._stray and not self._strays and promise._link is not None:
            promise._link.expect_no_stray()
        if promise._collected:
            promise.cancel()

    def _miss(self, promise: Promise, waited: float) -> None:
        if waited > 0:
            self._silent_since = self._silent_since if self._overdue else time.monotonic() - waited
            promise._overdue = True
            self._overdue += 1


def _refuse(promise: Promise, reason: str) -> Promise:
    promise._answer = Answered.refused(promise.pages, reason)
    promise._done = True
    return promise
