"""Sends requests over a connection to the daemon, each as a whole."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable
from threading import RLock
from typing import Protocol

from pagetier.shm import unix_socket
from pagetier.shm.errors import PagetierError
from pagetier.shm.failpoints import point

_SEND_FLAGS = socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT
_BUSY = "the daemon does not accept requests"


class LinkError(PagetierError):
    """The daemon cannot be reached, or the connection to it was lost; the message gives the reason."""


class SentRequest(Protocol):
    """The owner of a request.

    Attributes:
        sent: Set once the whole request is sent.
    """

    sent: bool


class RequestSender:
    """The sending side of a connection. Thread-safe.

    An exception of a signal handler may end send() at any point. It leaves no lock taken.

    Attributes:
        lock: Taken while a request is sent. It is reentrant since only then no other thread can release it:
            an exception may come between taking it and noting that. A signal handler that sends a request in the middle
            of another one finds `cut_off` set.
    """

    def __init__(self, connection: socket.socket, stop: Callable[[], None]) -> None:
        """Calls `stop` after a request that was sent only in part: what is sent behind it would be read as its rest."""
        self.lock = RLock()
        self._socket = connection
        self._stop = stop
        self._cut_off = False

    def send(self, data: bytes, timeout: float, owner: SentRequest | None) -> None:
        """Sends a packed request; see Link.send()."""
        ends = time.monotonic() + timeout
        try:
            if not self.lock.acquire(timeout=max(0.0, timeout)):
                raise LinkError(_BUSY)
            if self._cut_off:
                raise LinkError("an earlier request was sent only in part: this connection cannot be used any more")
            self._send_all(data, ends, owner)
        finally:
            try:  # noqa: SIM105  # a signal handler's exception could come before suppress() is entered
                self.lock.release()
            except RuntimeError:  # it was not taken
                pass

    def _send_all(self, data: bytes, ends: float, owner: SentRequest | None) -> None:
        rest, counts = memoryview(data), deque[int]()
        try:
            self._cut_off = True
            while (sent := sum(counts)) < len(data):
                try:  # in one call, so that no exception comes between sending bytes and noting their number
                    counts.extend(map(self._socket.send, (rest[sent:],), (_SEND_FLAGS,)))
                except OSError as error:
                    self._wait_for_room(error, ends)
            self._note(len(data), counts, owner)
            point("link.sent")
        except BaseException:
            self._note(len(data), counts, owner)
            if self._cut_off:
                self._stop()
            raise

    def _note(self, size: int, counts: deque[int], owner: SentRequest | None) -> None:
        sent = sum(counts)
        self._cut_off = 0 < sent < size
        if owner is not None:
            owner.sent = sent == size

    def _wait_for_room(self, error: OSError, ends: float) -> None:
        """Waits until the socket takes bytes again. Raises LinkError if it does not in time, or is closed."""
        if not isinstance(error, BlockingIOError):
            why = "" if self._socket.fileno() < 0 else f": {error.strerror}"
            raise LinkError(f"the daemon is gone{why}") from error
        if not unix_socket.wait_writable(self._socket, max(0.0, ends - time.monotonic())):
            raise LinkError(_BUSY) from None
