"""Requests for room on their way: sent over a link, answered to who waits for them, given up at a deadline.

Who waits reads the link himself, for all who wait; the keeper reads only what was given up.
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
        self._overdue = False

    @property
    def ready(self) -> bool:
        """Whether wait() returns at once."""
        if not self._done and not self._requests.foreign:
            self._requests.wait(self, self._link, 0.0)
        return self._done

    def wait(self, deadline: float) -> Reservation:
        """The reservation, once; after `deadline` seconds without an answer every page of it is refused."""
        if not self._requests.foreign:
            self._requests.wait(self, self._link, deadline)
        return self._collect(deadline)

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

    def wait(self, promise: Promise, link: Link | None, deadline: float) -> None:
        """Until the promise is answered, or `deadline` seconds. One of those who wait reads, for all of them."""
        ends = time.monotonic() + deadline
        left = max(0.0, deadline)
        with self._guard:
            while not promise._done:
                if self._reading or link is None:
                    self._guard.wait(left)
                elif not self._read(link, left):
                    link = None  # the keeper sees the end, too, and refuses what is open
                left = ends - time.monotonic()
                if left <= 0:
                    return

    def pump(self, link: Link) -> None:
        """Reads what is there, unless somebody else does. For the keeper. Raises LinkError at the end of the link."""
        for answer in link.read(0.0):
            self._take(answer)

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
                self._begin_stray(promise, waited)
            promise._collected = True
        return answer or Answered.refused(promise.pages, "the daemon did not answer in time")

    def _read(self, link: Link, seconds: float) -> bool:
        """Reads once, without the guard; False at the end of the link. The caller has the guard, once."""
        self._reading = True
        self._guard.release()
        answers: list[Answer] | None = None
        try:
            answers = link.read(seconds)
        except LinkError:
            pass
        finally:
            self._guard.acquire()
            self._reading = False
        for answer in answers or ():
            self._take(answer)
        self._guard.notify_all()
        return answers is not None

    def _take(self, answer: Answer) -> None:
        """An answer came in."""
        if not isinstance(answer, Reserved):
            return
        told = Answered(answer.outcomes, answer.entries, answer.serials, answer.reason)
        with self._guard:
            promise = self._waiting.pop(answer.number, None)
            if promise is None:
                return
            promise._held.update(told.granted_serials)
            promise._answer = told
            promise._done = True
            self._overdue -= promise._overdue
            self._tell_end_of_silence()
            if promise._collected:
                self._end_stray(promise)

    def lost(self) -> None:
        """The link is closed: no answer comes any more."""
        with self._guard:
            waiting, self._waiting = self._waiting, {}
            self._overdue = self._strays = 0
            self._told = False
            for promise in waiting.values():
                _refuse(promise, "the daemon is gone")
            self._guard.notify_all()

    def _expect(self, number: int, promise: Promise) -> bool:
        """False while the daemon owes an answer that somebody waited for in vain."""
        with self._guard:
            if not self._overdue:
                self._waiting[number] = promise
            else:
                self._tell_silence()
            return not self._overdue

    def _begin_stray(self, promise: Promise, waited: float) -> None:
        """Nobody waits for this answer any more: the keeper will read it, and give up what was granted."""
        self._strays += 1
        if promise._link is not None:
            promise._link.expect_stray()
        if waited > 0:
            self._miss(promise, waited)

    def _end_stray(self, promise: Promise) -> None:
        self._strays -= 1
        if not self._strays and promise._link is not None:
            promise._link.expect_no_stray()
        promise.cancel()

    def _miss(self, promise: Promise, waited: float) -> None:
        if not self._overdue:
            self._silent_since = time.monotonic() - waited
        promise._overdue = True
        self._overdue += 1
        self._tell_silence()

    def _tell_silence(self) -> None:
        if not self._told and time.monotonic() - self._silent_since > _SILENT_S:
            self._told = True
            log.warning("the daemon does not answer; stores are refused until it does")

    def _tell_end_of_silence(self) -> None:
        if self._told and not self._overdue:
            self._told = False
            log.info("the daemon answers again")


def _refuse(promise: Promise, reason: str) -> Promise:
    promise._answer = Answered.refused(promise.pages, reason)
    promise._done = True
    return promise
