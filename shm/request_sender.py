"""Sends requests over a connection to the daemon, each as a whole."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from threading import RLock
from typing import Protocol

from pagetier.shm import clock, unix_socket
from pagetier.shm.clock import Deadline
from pagetier.shm.errors import PagetierError
from pagetier.shm.failpoints import point

_SEND_FLAGS = socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT
_REMEMBERED = 16
_BUSY = "the daemon does not accept requests"


class LinkError(PagetierError):
    """The daemon cannot be reached, or the connection to it was lost; the message gives the reason."""


class Sending:
    """The bytes of a request: how many there are, and how many of them the socket took.

    Whatever an exception of a signal handler ends, and another one the handling of that, this is true: a call of the
    socket and the note of what it took are one step.
    """

    __slots__ = ("counts", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.counts: deque[int] = deque()

    @property
    def is_whole(self) -> bool:
        """Whether the whole request was sent."""
        return sum(self.counts) == self.size

    @property
    def is_cut(self) -> bool:
        """Whether a part of the request was sent."""
        return 0 < sum(self.counts) < self.size


class SentRequest(Protocol):
    """The owner of a request.

    Attributes:
        sending: Set before the first byte of the request is sent.
    """

    sending: Sending | None


class RequestSender:
    """The sending side of a connection. Thread-safe.

    An exception of a signal handler may end send() at any point. It leaves no lock taken.

    Attributes:
        lock: Taken while a request is sent. It is reentrant since only then no other thread can release it:
            an exception may come between taking it and noting that. A signal handler that sends a request when a part
            of another one was sent gets LinkError.
    """

    def __init__(self, connection: socket.socket, stop: Callable[[], None]) -> None:
        """Calls `stop` after a request that was sent only in part: what is sent behind it would be read as its rest."""
        self.lock = RLock()
        self._socket = connection
        self._stop = stop
        self._underway: deque[Sending] = deque(maxlen=_REMEMBERED)  # more than one only if interrupts came

    def send(self, data: bytes, timeout: float, owner: SentRequest | None) -> None:
        """Sends a packed request; see Link.send()."""
        deadline = Deadline(timeout)
        try:
            if not self.lock.acquire(blocking=False) and not clock.wait(self._take_lock, timeout):
                raise LinkError(_BUSY)
            if self._underway:
                self._require_whole()
            self._send_all(data, deadline, owner)
        finally:
            try:  # noqa: SIM105  # a signal handler's exception could come before suppress() is entered
                self.lock.release()
            except RuntimeError:  # it was not taken
                pass

    def _take_lock(self, seconds: float) -> bool:
        return self.lock.acquire(timeout=seconds)

    def _require_whole(self) -> None:
        """Raises LinkError if a part of an earlier request was sent."""
        if any(sending.is_cut for sending in self._underway):
            self._stop()  # a second interrupt may have come before the first one's handling did
            raise LinkError("an earlier request was sent only in part: this connection cannot be used any more")
        self._underway = deque((each for each in self._underway if not each.is_whole), _REMEMBERED)

    def _send_all(self, data: bytes, deadline: Deadline, owner: SentRequest | None) -> None:
        sending = Sending(len(data))
        if owner is not None:
            owner.sending = sending
        rest, counts = memoryview(data), sending.counts
        try:
            self._underway.append(sending)
            while (sent := sum(counts)) < len(data):
                try:  # in one call, so that no exception comes between sending bytes and noting their number
                    counts.extend(map(self._socket.send, (rest[sent:],), (_SEND_FLAGS,)))
                except OSError as error:
                    self._wait_for_room(error, deadline)
            self._forget(sending)
            point("link.sent")
        except BaseException:
            if sending.is_cut:
                self._stop()
            else:
                self._forget(sending)
            raise

    def _forget(self, sending: Sending) -> None:
        try:  # noqa: SIM105  as above
            self._underway.remove(sending)
        except ValueError:  # it came to an end before, or a request of a signal handler has dropped it
            pass

    def _wait_for_room(self, error: OSError, deadline: Deadline) -> None:
        """Waits until the socket takes bytes again. Raises LinkError if it does not in time, or is closed."""
        if not isinstance(error, BlockingIOError):
            why = "" if self._socket.fileno() < 0 else f": {error.strerror}"
            raise LinkError(f"the daemon is gone{why}") from error
        if not unix_socket.wait_writable(self._socket, deadline.left):
            raise LinkError(_BUSY) from None
