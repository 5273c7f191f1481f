"""One connection to the daemon: sending from any thread within a timeout, receiving on one."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec

from pagetier.shm.failpoints import point
from pagetier.shm.protocol import (
    REQUEST_LIMIT,
    Answer,
    Attach,
    Detach,
    Detached,
    Observe,
    ProtocolError,
    Refusal,
    Request,
    Unpacker,
    Welcome,
    pack,
    read_answer,
)
from pagetier.shm.socket_path import DefaultSocket
from pagetier.shm.socket_trust import why_untrusted

_CHUNK = 256 << 10
_DESCRIPTORS = 3
_CROWDED = "the daemon lets nobody in, too many are waiting"
_TIMEVAL = struct.Struct("@ll")
_SHORTEST_S = 1e-3  # 0 would be for ever
_DETACH = 1  # the number of a link's only numbered Detach
_LOOK_S = 60.0
_OTHER_READS_S = 0.005


class LinkError(Exception):
    """There is no daemon to talk to, or no more; the message says why."""


class RefusedError(LinkError):
    """There is a daemon, and it will not have us, or what it offers is of no use; the message says why."""


class Greeting(msgspec.Struct, frozen=True):
    """What the daemon answered, and the segments' descriptors, which the receiver closes."""

    welcome: Welcome
    descriptors: tuple[int, ...]


class Link:
    """A connected socket. Raises LinkError where the daemon is gone, does not answer in time or talks nonsense.

    Raises RefusedError for a default path where another user could have placed the socket.

    One thread greets, watches and closes; any thread sends, reads and stops, also after close(). Who waits for an
    answer reads it himself: an answer that is read by another thread comes later by that thread's waking.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        self._unpacker = Unpacker()
        self._sending = threading.Lock()
        # Reentrant: stop() may be called while this thread collects garbage.
        self._waking = threading.RLock()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._reading = threading.Lock()
        self._stopped = False
        self._cut = False  # in the middle of a request: what is sent behind it would be read as its rest
        self._detached = False
        self._broken = ""
        self._watched = select.POLLRDHUP
        try:
            _connect(self._socket, path, timeout)
            _check_trust(self._socket, path)
        except OSError as error:
            self.close()
            why = _CROWDED if isinstance(error, BlockingIOError) else error.strerror or error
            raise LinkError(f"{path}: {why}") from error
        except RefusedError:
            self.close()
            raise
        self._socket.settimeout(0)

    def greet(self, request: Attach | Observe, timeout: float) -> Greeting:
        """Says who we are. Raises LinkError also after stop(), RefusedError if the daemon refuses."""
        ends = time.monotonic() + timeout
        self.send(request, timeout)
        point("link.asked")
        if not self._comes(max(0.0, ends - time.monotonic()), self._wake):
            raise LinkError("the daemon does not answer")
        try:
            data, descriptors = _receive_descriptors(self._socket)
        except OSError as error:
            raise LinkError(f"the daemon is gone: {error.strerror}") from error
        try:
            return Greeting(_welcome(list(self._read(data)), request, len(descriptors)), descriptors)
        except LinkError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    def send(self, request: Request, timeout: float) -> None:
        """Sends all of a request, or raises LinkError. When only half of it could be sent, the link stops."""
        ends, data = time.monotonic() + timeout, pack(request)
        if len(data) > REQUEST_LIMIT:
            raise LinkError(f"a request of {len(data)} bytes is longer than {REQUEST_LIMIT}: ask for fewer pages")
        if not self._sending.acquire(timeout=max(0.0, timeout)):
            raise LinkError("the daemon takes no requests")
        try:
            if self._cut:
                raise LinkError("a request was sent by half: the daemon understands no other over this connection")
            self._send_all(memoryview(data), ends)
        finally:
            self._sending.release()

    def detach(self, timeout: float) -> None:
        """Sends Detach, also behind an Attach that is not answered yet: the slot of this link is free, now or soon.

        Raises LinkError if it could not be sent within the timeout.
        """
        self.send(Detach(_DETACH), timeout)

    def wait_detached(self) -> bool:
        """Waits until the daemon has freed the slot, however long that takes; False if the link ends before."""
        try:
            while not self._detached:
                if not self.read(_LOOK_S):
                    time.sleep(_OTHER_READS_S)
        except LinkError:
            return self._detached
        return True

    def read(self, timeout: float) -> list[Answer]:
        """The answers that come next; none if none comes in time, or while another thread reads."""
        if not self._reading.acquire(blocking=False):
            return []
        try:
            return list(self._read(self._receive_some())) if self._comes(timeout) else []
        except LinkError as error:
            self._broken = str(error)
            self._stir()
            raise
        finally:
            self._reading.release()

    def ask(self, request: Request, timeout: float) -> Answer:
        """Sends a request and waits for its answer. For who has the link to himself."""
        ends = time.monotonic() + timeout
        self.send(request, timeout)
        while (left := ends - time.monotonic()) > 0:
            for answer in self.read(left):
                return answer
        raise LinkError("the daemon does not answer")

    def watch(self) -> bool:
        """Waits until there is something to read that nobody waits for, or nothing more; False after stop().

        Raises LinkError if somebody else has found the link broken.
        """
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        while not self._stopped:
            if self._broken:
                raise LinkError(self._broken)
            poll.register(self._socket, self._watched)
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._wake in ready:
                os.eventfd_read(self._wake)
            elif ready:
                return True
        return False

    def expect_stray(self) -> None:
        """From now on watch() returns for answers, too: somebody will not read his own."""
        self._watched = select.POLLRDHUP | select.POLLIN
        self._stir()

    def expect_no_stray(self) -> None:
        """Everybody reads his own answers again."""
        self._watched = select.POLLRDHUP

    def stop(self) -> None:
        """Ends watch() and greet()."""
        self._stopped = True
        self._stir()

    def _stir(self) -> None:
        with self._waking:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Ends the connection. Who is sending meanwhile gets LinkError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._sending, self._reading:
            self._socket.close()
        with self._waking:
            wake, self._wake = self._wake, -1
            if wake >= 0:
                os.close(wake)

    def disown(self) -> None:
        """For a forked child: closes what it inherited; its parent's connection goes on."""
        self._socket.close()
        wake, self._wake = self._wake, -1
        if wake >= 0:
            os.close(wake)

    def _send_all(self, data: memoryview, ends: float) -> None:
        sent = 0
        try:
            while sent < len(data):
                sent += self._send_some(data[sent:], ends)
                point("link.sent")
        finally:
            if 0 < sent < len(data):
                self._cut = True
                self.stop()

    def _send_some(self, data: memoryview, ends: float) -> int:
        if self._socket.fileno() < 0:
            raise LinkError("the daemon is gone")
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        if not poll.poll(max(0.0, ends - time.monotonic()) * 1000):
            raise LinkError("the daemon takes no requests")
        try:
            return self._socket.send(data, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise LinkError(f"the daemon is gone: {error.strerror}") from error

    def _comes(self, timeout: float, unless: int = -1) -> bool:
        """Whether there is something to read before the time is over, or before descriptor `unless` is readable."""
        if self._socket.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if unless >= 0:
            poll.register(unless, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(timeout * 1000)}
        return bool(ready) and unless not in ready

    def _receive_some(self) -> bytes:
        try:
            data = self._socket.recv(_CHUNK)
        except OSError as error:
            raise LinkError(f"the daemon is gone: {error.strerror}") from error
        if not data:
            raise LinkError("the daemon is gone")
        return data

    def _read(self, data: bytes) -> Iterator[Answer]:
        try:
            for body in self._unpacker.feed(data):
                answer = read_answer(body)
                self._detached |= isinstance(answer, Detached)
                yield answer
        except ProtocolError as error:
            raise LinkError(f"not a pagetier daemon, or another version: {error}") from error


def _connect(connecting: socket.socket, path: Path, timeout: float) -> None:
    """Waits for room in the daemon's queue: a socket with a timeout of Python's never does, but fails at once."""
    microseconds = int(max(timeout, _SHORTEST_S) * 1e6)
    connecting.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(*divmod(microseconds, 1_000_000)))
    connecting.connect(os.fspath(path))


def _check_trust(connected: socket.socket, path: Path) -> None:
    """Raises RefusedError, or OSError where the path is gone. A check before connecting would come too early."""
    if isinstance(path, DefaultSocket) and (why := why_untrusted(path, connected)):
        raise RefusedError(f"cannot trust {path}: {why}, or name the socket to use with PAGETIER_SOCKET")


def _receive_descriptors(connection: socket.socket) -> tuple[bytes, tuple[int, ...]]:
    """What socket.recv_fds does, but for the flag, which that forgets: no program that is started inherits them."""
    numbers = array("i")
    room = socket.CMSG_LEN(_DESCRIPTORS * numbers.itemsize)
    data, messages, _, _ = connection.recvmsg(_CHUNK, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, body in messages:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers.frombytes(body[: len(body) - len(body) % numbers.itemsize])
    return data, tuple(numbers)


def _welcome(answers: list[Answer], request: Attach | Observe, descriptors: int) -> Welcome:
    """The one answer to a greeting. Raises LinkError if it is another, or came without all descriptors."""
    if not answers:
        raise LinkError("the daemon is gone")
    answer = answers[0]
    if isinstance(answer, Refusal):
        raise RefusedError(f"the daemon refuses: {answer.reason}")
    if len(answers) > 1 or not isinstance(answer, Welcome):
        raise RefusedError("not a pagetier daemon, or another version")
    if descriptors != (_DESCRIPTORS if isinstance(request, Attach) else _DESCRIPTORS - 1):
        raise LinkError(f"{descriptors} descriptors came: are too many files open?")
    return answer
