"""Requests to the daemon and their responses: sending, waiting with a timeout, and noticing a daemon that is late.

A request passes through these steps:

1. ask() enters it into `_waiting` under a number, and sends it. The number comes back in the response.
2. Threads that wait for a response read the socket themselves, one of them for all: handing each response from a
   reading thread to a waiting one would cost a switch of threads for each request. The thread that reads delivers the
   responses of the others too. After each read it wakes them, and one that still waits reads next.
3. The client's background thread reads from a response that no thread waits for, yet or any longer (a stray), until one
   that is no stray: otherwise it would compete with the waiting threads for each response.
4. _deliver() gives the response to its request and removes the request from all tables; a response whose request has
   left them is dropped.
5. take() collects the result. Without a result the request becomes a stray: a late response must still be read, since
   the pages that it grants have to be abandoned.

A request whose caller has waited in vain is overdue. While one is, further requests fail at once: one caller waits for
a daemon that hangs, not every caller. The responses to the overdue requests end that.

An exception of a signal handler (Ctrl-C) may come between any two steps. It may cost a second delivery of a response,
which receive() allows, and never a response or a lock.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pagetier.shm import clock
from pagetier.shm.client_socket import Sending
from pagetier.shm.clock import Deadline
from pagetier.shm.daemon_link import Link, LinkError
from pagetier.shm.failpoints import point
from pagetier.shm.protocol import Answer, Fetched, Flushed, Located, Request, Reserved
from pagetier.shm.safe_event import SafeCondition

log = logging.getLogger("pagetier.client")

_SILENT_S = 0.5  # seconds of silence after which a late response is logged
_READ_S = 0.1
_T = TypeVar("_T")


class OpenRequest(Generic[_T]):
    """A request and its result. Requests changes it, under its lock.

    The result is known when the daemon has answered, or when it is certain that no response will come. The caller and
    the response may come in any order, so `done` and `collected` are independent: the result of a request that was
    collected before is dropped, which releases what it refers to, such as granted pages.

    Attributes:
        link: The connection over which the request is sent; None if there is none.
        request: Makes the request from its number.
        accept: Returns the result for a response, or None for a response of another type. Called under the lock of
            Requests, by any thread. An exception of a signal handler may end it; then it is called again.
        fail: Returns the result for the reason why there is no response.
        due: The clock's time by which a healthy daemon has answered, if the request waits for the disk.
        number: The number of the request, once it is being sent.
        sending: The bytes of the request; None before it is sent.
        unsent: Whether the request could not be sent over this connection: the daemon never receives it.
        done: Whether the result is known.
        collected: Whether the caller has taken the result, or no longer waits for it.
        result: The result, until it is collected.
        call: Called, in any thread, once the result is known and until it is collected. Never waits or raises.
    """

    def __init__(
        self,
        link: Link | None,
        request: Callable[[int], Request],
        accept: Callable[[Answer], _T | None],
        fail: Callable[[str], _T],
        due: float = math.inf,
    ) -> None:
        self.link, self.due = link, due
        self.number = 0
        self.sending: Sending | None = None
        self.unsent = self.done = self.collected = False
        self.result: _T | None = None
        self.call: Callable[[], object] | None = None
        self.request, self.accept, self.fail = request, accept, fail

    @property
    def sent(self) -> bool:
        """Whether the whole request was sent."""
        return self.sending is not None and self.sending.is_whole

    def receive(self, answer: Answer) -> bool:
        """Takes a response. Returns False if it is of another type. May be called again."""
        if not self.done:
            result = self.accept(answer)
            if result is None:
                return False
            self._set(result)
        self._report()
        return True

    def finish(self, result: _T) -> None:
        """Sets the result, or drops it if the request was collected before."""
        self._set(result)
        self._report()

    def _set(self, result: _T) -> None:
        self.result = None if self.collected else result
        self.done = True
        self.accept = _nothing  # it refers to the result, which its owner may drop before this request

    def _report(self) -> None:
        if (call := self.call) is not None:
            call()


def _nothing(_answer: Answer) -> None:
    """Accepts no response."""


class Requests:
    """The open requests of one client in one process. Thread-safe."""

    def __init__(self) -> None:
        self._changed = SafeCondition()  # for threads that wait for one that reads
        self._lock = self._changed.lock
        self._numbers = itertools.count(1)
        self._waiting: dict[int, OpenRequest[Any]] = {}  # by number: those that have no response yet
        self._overdue: set[OpenRequest[Any]] = set()  # of these, those that a caller has waited for in vain
        self._strays: set[OpenRequest[Any]] = set()  # of these, those that the background thread reads for
        self._last_answer = 0.0
        self._silent_since = 0.0  # when the first of the overdue requests was sent
        self._logged = False  # whether the silence was logged
        self._pid = os.getpid()

    @property
    def foreign(self) -> bool:
        """Whether these requests are the parent's, seen from a forked child, which must not take their locks."""
        return self._pid != os.getpid()

    def ask(self, pending: OpenRequest[_T], timeout: float) -> None:
        """Sends a request and returns without waiting for the response.

        If it cannot be sent within `timeout` seconds, or the daemon is late with others, `pending` fails at once.
        """
        if pending.link is None:
            return pending.finish(pending.fail("no daemon is attached"))
        try:
            self._ask(pending, pending.link, timeout)
        except BaseException:  # an exception of a signal handler; the request may be sent
            self._forget_unsent(pending)
            raise

    def leave(self, pending: OpenRequest[_T]) -> None:
        """Leaves the response to the background thread, because no thread waits for it now. May be called again."""
        with self._lock:
            if pending.link is None or pending.done or self._waiting.get(pending.number) is not pending:
                return
            if pending not in self._strays:
                # First the link: if an exception comes between the two, the next call repeats the first.
                pending.link.expect_stray()
                self._strays.add(pending)

    def wait(self, pending: OpenRequest[_T], timeout: float) -> None:
        """Waits until the result is known, at most `timeout` seconds. One of the waiting threads reads for all."""
        deadline, link = Deadline(timeout), pending.link
        while not pending.done and (left := deadline.left):
            # Not longer: close() fails what is open, but cannot wake a thread that waits for the socket; and a thread
            # that an exception of a signal handler ends may not wake the others.
            seconds = min(left, _READ_S)
            try:
                # The thread reads until its own response comes. If another thread reads already, that one delivers it.
                if link is None or not self._read(link, seconds):
                    self._sleep(pending, link, seconds)
            except LinkError:
                link = None  # the background thread notices it too, and fails all open requests

    def take(self, pending: OpenRequest[_T], waited: float) -> _T | None:
        """Returns the result and marks the request as collected; None if the result is unknown or already collected.

        Args:
            pending: The request.
            waited: The seconds that the daemon had for its response, or 0. If they were not enough, further requests
                fail at once until the daemon answers.
        """
        with self._lock:
            if not pending.done and not pending.collected:
                # No thread waits for it any more, and its response may still grant pages: it has to be read.
                self.leave(pending)
                if waited > 0:
                    self._silent_since = self._silent_since if self._overdue else clock.now() - waited
                    self._overdue.add(pending)
            result, pending.result, pending.collected, pending.call = pending.result, None, True, None
        return result

    def pump(self, link: Link) -> None:
        """Reads responses that have arrived, or waits while another thread reads them. For the background thread.

        Raises LinkError at the end of the connection.
        """
        with self._lock:
            if not self._strays:
                link.expect_no_stray()
        if not self._read(link, 0.0):
            with self._lock:
                # If it returned at once, it would see the same responses again, and take the core from the reader.
                if link.reader:
                    self._changed.wait(_READ_S)
        self.log_silence()

    def fail_all(self) -> None:
        """Fails all open requests, because the connection is closed."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            self._overdue, self._strays = set(), set()
            self._logged = False
            for pending in waiting.values():
                pending.finish(pending.fail("the daemon is gone"))
            self._changed.wake_all()

    def log_silence(self) -> None:
        """Logs when the daemon has been silent for a while, and when it answers again.

        The caller must not have the lock: writing a log may wait for a thread that waits for the lock.
        """
        if not self._overdue and not self._logged:
            return
        with self._lock:
            silent = bool(self._overdue) and (self._logged or clock.now() - self._silent_since > _SILENT_S)
            changed, self._logged = silent != self._logged, silent
        if changed and silent:
            log.warning("the daemon does not answer; stores are rejected until it does")
        elif changed:
            log.info("the daemon answers again")

    def _ask(self, pending: OpenRequest[_T], link: Link, timeout: float) -> None:
        pending.number = next(self._numbers)
        # Before it is sent: another thread may read the response before send() returns.
        if not self._register(pending):
            return pending.finish(pending.fail("the daemon does not answer"))
        try:
            link.send(pending.request(pending.number), timeout, pending)
            point("client.asked")
        except LinkError as error:
            self._forget_unsent(pending)
            pending.unsent = True
            pending.finish(pending.fail(str(error)))

    def _forget_unsent(self, pending: OpenRequest[_T]) -> None:
        with self._lock:
            # If the whole request was sent, the daemon answers it, and the answer may grant pages: it stays open.
            if not pending.sent:
                self._waiting.pop(pending.number, None)

    def _sleep(self, pending: OpenRequest[_T], link: Link | None, seconds: float) -> None:
        """Waits for the thread that reads, unless it has delivered the response or has stopped reading by now."""
        with self._lock:
            if not pending.done and (link is None or link.reader):
                self._changed.wait(seconds)

    def _register(self, pending: OpenRequest[_T]) -> bool:
        """Registers the request, unless the daemon is late with earlier ones. Returns whether it did."""
        with self._lock:
            if not self._overdue and (pending.due == math.inf or not self._disk_is_late()):
                self._waiting[pending.number] = pending
                return True
        self.log_silence()
        return False

    def _disk_is_late(self) -> bool:
        """Returns whether a request that waits for the disk is past its time, with no message from the daemon since.

        A slow disk stops only requests that need it, too.
        """
        now = clock.now()
        return any(self._last_answer < other.due < now for other in self._waiting.values())

    def _read(self, link: Link, seconds: float) -> bool:
        """Reads once. Returns False if another thread reads. Raises LinkError at the end of the connection."""
        try:
            return link.deliver(seconds, self._deliver)
        finally:
            # When the socket has no reader: one of them reads next. A thread that begins to wait has the lock.
            with self._lock:
                self._changed.wake_all()

    def _deliver(self, answer: Answer) -> None:
        """Delivers a response to its request. An exception of a signal handler may end it; then it is called again."""
        with self._lock:
            self._last_answer = clock.now()  # also for other messages: the daemon is not silent
            if not isinstance(answer, (Reserved, Fetched, Located, Flushed)):
                return
            pending = self._waiting.get(answer.number)
            if pending is None or not pending.receive(answer):
                return
            # receive() may be repeated, so the request leaves `_waiting` last: until then an exception repeats it all.
            point("client.answered")
            self._overdue.discard(pending)
            self._strays.discard(pending)
            self._waiting.pop(answer.number)
