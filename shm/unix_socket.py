"""Operations of a client's Unix socket that Python's own methods do not offer in this form."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from array import array
from collections import deque
from pathlib import Path

from pagetier.shm import clock
from pagetier.shm.socket_path import SOCKET_NAME

_CROWDED = "the daemon's connection queue is full"
_NO_LISTENER = tuple(map(os.strerror, (errno.ENOENT, errno.ECONNREFUSED)))
_TIMEVAL = struct.Struct("@ll")
_BLOCKING_S = 0.1
_SHORTEST_S = 1e-3  # 0 would mean no timeout


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
