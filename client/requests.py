"""Requests for room on their way: sent over a link, answered on the keeper's thread, given up at a deadline."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable

import msgspec
import numpy as np

from ..shm._core import Session
from ..shm.link import Link, LinkError
from ..shm.protocol import Reserve, Reserved
from .store import Answered, Part, Reservation

_SERIAL = np.dtype("<u8")


class Attachment(msgspec.Struct, frozen=True, eq=False):
    """A link, and the session whose memory it is about."""

    link: Link
    session: Session


class Promise:
    """Room that was asked for. Collect it with wait(), or cancel(); who drops it cancels.

    Made by Client.reserve_soon. From any thread.
    """

    def __init__(self, requests: Requests, session: Session | None, part: Part, pages: int) -> None:
        self._requests = requests
        self._answer: Answered | None = None
        self._collected = False
        self._done = threading.Event()
        self.session = session
        self.part = part
        self.pages = pages

    @property
    def ready(self) -> bool:
        """Whether wait() returns at once."""
        return self._done.is_set()

    def wait(self, deadline: float) -> Reservation:
        """The reservation, once; after `deadline` seconds without an answer every page of it is refused."""
        self._done.wait(max(0.0, deadline))
        return self._requests.collect(self)

    def cancel(self) -> None:
        """Gives up what was or will be granted. Does nothing after wait()."""
        self._requests.collect(self).abandon()

    def __del__(self) -> None:
        self.cancel()

    def __repr__(self) -> str:
        state = "collected" if self._collected else "ready" if self.ready else "asked"
        return f"<Promise of {self.pages} pages, {state}>"


class Requests:
    """The requests of one client, and which of its granted pages are still being written."""

    def __init__(self) -> None:
        # Reentrant, as the end of a dropped Promise or Reservation may come at any point of the same thread.
        self._guard = threading.RLock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Promise] = {}
        self._held: set[int] = set()
        self._overdue = 0

    def ask(
        self, to: Attachment | None, request: Callable[[int], Reserve], promise: Promise, deadline: float
    ) -> Promise:
        """Sends without waiting for the answer. Never raises: what can not be sent is refused."""
        with self._guard:
            if to is None or self._overdue:
                return self._refuse(promise, "the daemon does not answer" if to else "no daemon is attached")
            number = next(self._numbers)
            self._waiting[number] = promise
        try:
            to.link.send(request(number), deadline)
        except LinkError as error:
            to.link.stop()
            with self._guard:
                self._waiting.pop(number, None)
                self._refuse(promise, str(error))
        return promise

    def collect(self, promise: Promise) -> Reservation:
        """What was answered by now, for the first who asks; the pages of an answer that comes later are given up."""
        with self._guard:
            answer, promise._answer = promise._answer, None
            if answer is None:
                answer = Answered.refused(promise.pages, "the daemon did not answer in time")
                self._overdue += not promise._collected
            promise._collected = True
        return Reservation(promise.session, answer, promise.part, self.let_go)

    def answered(self, answer: Reserved) -> None:
        """An answer came in."""
        told = Answered(answer.outcomes, answer.entries, answer.serials, answer.reason)
        with self._guard:
            promise = self._waiting.pop(answer.number, None)
            if promise is None:
                return
            self._held.update(told.granted_serials)
            promise._answer = told
            if promise._collected:
                self._overdue -= 1
                promise.cancel()
            promise._done.set()

    def lost(self) -> None:
        """The link is gone: no answer comes any more."""
        with self._guard:
            for promise in self._waiting.values():
                if not promise._collected:
                    self._refuse(promise, "the daemon is gone")
            self._waiting.clear()
            self._overdue = 0

    def let_go(self, serials: Iterable[int]) -> None:
        """These pages are not being written any more."""
        with self._guard:
            self._held.difference_update(serials)

    def held(self) -> bytes:
        """Serials (u64) of the pages that are being written."""
        with self._guard:
            return np.array(sorted(self._held), dtype=_SERIAL).tobytes()

    def _refuse(self, promise: Promise, reason: str) -> Promise:
        promise._answer = Answered.refused(promise.pages, reason)
        promise._done.set()
        return promise
