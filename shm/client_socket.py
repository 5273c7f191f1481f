"""A client's Unix socket: connecting, sending each request as a whole, receiving, and waiting for either."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path
from threading import RLock
from typing import Protocol

from pagetier.shm import clock
from pagetier.shm.clock import Deadline
from pagetier.shm.errors import PagetierError
from pagetier.shm.failpoints import point
from pagetier.shm.socket_path import SOCKET_NAME

_CROWDED = "the daemon's connection queue is full"
_NO_LISTENER = tuple(map(os.strerror, (errno.ENOENT, errno.ECONNREFUSED)))
_TIMEVAL = struct.Struct("@ll")
_BLOCKING_S = 0.1
_SHORTEST_S = 1e-3  # 0 would mean no timeout
_SEND_FLAGS = socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT
_REMEMBERED = 16
_BUSY = "the daemon does not accept requests"


class LinkError(PagetierError):
    """The daemon cannot be reached, or the connection to it was lost; the message gives the reason."""


def connect(connecting: socket.socket, path: Path, timeout: float) -> None:
    """Connects, and waits at most `timeout` seconds for room in the queue of the listening socket.

    A socket with a timeout set by Python fails at once if the queue is full.

    Raises BlockingIOError if the queue was full for the whole timeout, OSError if connecting failed otherwise.
    """
    microseconds = int(max(timeout, _SHORTEST_S) * 1e6)
    connecting.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(*divmod(microseconds, 1_000_000)))
    connecting.connect(os.fspath(path))


def why_not_connected(path: Path, error: OSError) -> str:
    """Returns why connect() has failed."""
    if not isinstance(error, PermissionError) and path.is_dir():
        return f"it is a folder, not a socket: the daemon's may be {path / SOCKET_NAME}"
    return _CROWDED if isinstance(error, BlockingIOError) else error.strerror or str(error)


def nothing_listens(why: str) -> bool:
    """Returns whether a reason that ends as why_not_connected() says it means that no daemon has the socket."""
    return why.endswith(_NO_LISTENER)


def limit_receiving(connection: socket.socket) -> None:
    """Makes a socket block, for 0.1 s at most when it receives. receive() needs this."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(0, int(_BLOCKING_S * 1e6)))


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
        if not wait_writable(self._socket, deadline.left):
            raise LinkError(_BUSY) from None


def receive(connection: socket.socket, received: deque[bytes], length: int, timeout: float) -> None:
    """Appends up to `length` bytes to `received`, b"" at the end of the connection.

    Appends nothing if none arrive within `timeout` or 0.1 s, or if the socket is closed. Without a timeout and from
    0.1 s on it takes one system call, where a socket with a timeout set by Python takes two.

    Raises:
        OSError: The connection is lost.
    """
    if 0 < timeout < _BLOCKING_S and not wait_readable(connection, timeout):
        return
    flags = 0 if timeout > 0 else socket.MSG_DONTWAIT
    try:
        # In one call: an interrupt between two would lose the bytes.
        received.extend(map(connection.recv, (length,), (flags,)))
    except BlockingIOError:
        pass
    except OSError:
        if connection.fileno() >= 0:
            raise


def wait_writable(connection: socket.socket, timeout: float) -> bool:
    """Returns True as soon as the socket takes bytes, False after `timeout` seconds."""
    poll = select.poll()
    poll.register(connection, select.POLLOUT)
    return bool(polled(poll, timeout))


def wait_readable(connection: socket.socket, timeout: float, unless: int = -1) -> bool:
    """Returns True as soon as the socket is readable, False after `timeout` seconds or if the socket is closed.

    Returns False, too, as soon as the descriptor `unless` is readable.
    """
    if connection.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    if unless >= 0:
        poll.register(unless, select.POLLIN)
    ready = polled(poll, timeout)
    return bool(ready) and unless not in ready


def polled(poll: select.poll, timeout: float) -> set[int]:
    """Returns the descriptors that are ready, after waiting for one of them at most `timeout` seconds."""
    return {descriptor for descriptor, _ in clock.wait(lambda seconds: poll.poll(seconds * 1000), timeout)}


def receive_with_descriptors(connection: socket.socket, length: int, most: int) -> tuple[bytes, tuple[int, ...]]:
    """Returns up to `length` received bytes and up to `most` descriptors, which the caller closes.

    Unlike socket.recv_fds, it sets the close-on-exec flag, so that no program started by this process inherits them.
    """
    numbers = array("i")
    room = socket.CMSG_LEN(most * numbers.itemsize)
    data, messages, _, _ = connection.recvmsg(length, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, body in messages:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers.frombytes(body[: len(body) - len(body) % numbers.itemsize])
    return data, tuple(numbers)
