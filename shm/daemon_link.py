"""A client's connection to the daemon: any thread sends within a timeout, one thread at a time receives."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from pathlib import Path

import msgspec

from pagetier.shm import unix_socket
from pagetier.shm.errors import PagetierError
from pagetier.shm.failpoints import point
from pagetier.shm.message_codec import pack, read_answer
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
    Welcome,
)
from pagetier.shm.socket_path import DefaultSocket
from pagetier.shm.socket_trust import peer_credentials, why_untrusted
from pagetier.shm.unpacker import Unpacker

_CHUNK = 64 << 10
_SEND_FLAGS = socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT
_DESCRIPTORS = 3
_CROWDED = "the daemon's connection queue is full"
_DETACH = 1  # the number of a link's only numbered Detach
_READ_S = 60.0
_OTHER_READS_S = 0.005


class LinkError(PagetierError):
    """The daemon cannot be reached, or the connection to it was lost; the message gives the reason."""


class RefusedError(LinkError):
    """The daemon rejected the client, or its socket is not trusted; the message gives the reason."""


class Greeting(msgspec.Struct, frozen=True):
    """The daemon's Welcome and the descriptors of the segments, which the receiver closes."""

    welcome: Welcome
    descriptors: tuple[int, ...]


class Link:
    """A connection to the daemon's control socket.

    One thread greets, watches and closes; any thread sends, reads and stops, also after close(). Each thread
    reads the response that it waits for: waking it from another thread would take longer.

    Raises:
        RefusedError: The path is a default one, and another user could have placed the socket there.
        LinkError: The daemon is gone, does not answer in time or violates the protocol; also in all methods below.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        self._unpacker = Unpacker()
        self._sending = threading.Lock()
        # The lock is reentrant because stop() may be called while this thread collects garbage.
        self._waking = threading.RLock()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._reading = threading.Lock()
        self._stopped = False
        self._cut_off = False  # in the middle of a request: what is sent behind it would be read as its rest
        self._detached = False
        self._broken = ""
        self._watched = select.POLLRDHUP
        try:
            unix_socket.connect(self._socket, path, timeout)
            _check_trust(self._socket, path)
        except OSError as error:
            self.close()
            why = _CROWDED if isinstance(error, BlockingIOError) else error.strerror or error
            raise LinkError(f"{path}: {why}") from error
        except RefusedError:
            self.close()
            raise
        unix_socket.limit_receiving(self._socket)

    @property
    def daemon_pid(self) -> int:
        """The PID of the daemon; 0 if it lives in a PID namespace that cannot be seen from here."""
        return peer_credentials(self._socket)[0]

    def greet(self, request: Attach | Observe, timeout: float) -> Greeting:
        """Returns the daemon's response to the request that opens a connection.

        Raises RefusedError if the daemon rejected the client or is of another version.

        Raises:
            LinkError: The daemon does not answer in time, or stop() was called.
        """
        ends = time.monotonic() + timeout
        self.send(request, timeout)
        point("link.asked")
        if not unix_socket.wait_readable(self._socket, max(0.0, ends - time.monotonic()), self._wake):
            raise LinkError("the daemon does not answer")
        try:
            data, descriptors = unix_socket.receive_with_descriptors(self._socket, _CHUNK, _DESCRIPTORS)
        except OSError as error:
            raise LinkError(f"the daemon is gone: {error.strerror}") from error
        try:
            return Greeting(_welcome(self._read(data), request, len(descriptors)), descriptors)
        except LinkError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    def send(self, request: Request, timeout: float) -> None:
        """Sends the whole request within `timeout` seconds. A request that was sent only in part stops the link.

        Raises:
            LinkError: The request is too long, or was not sent in time, or the connection was lost or stopped by a
                partial request.
        """
        data, ends = pack(request), time.monotonic() + timeout
        if len(data) > REQUEST_LIMIT:
            raise LinkError(f"a request of {len(data)} bytes is longer than {REQUEST_LIMIT}: ask for fewer pages")
        if not self._sending.acquire(timeout=max(0.0, timeout)):
            raise LinkError("the daemon does not accept requests")
        try:
            if self._cut_off:
                raise LinkError("an earlier request was sent only in part: this connection cannot be used any more")
            self._send_all(data, ends)
        finally:
            self._sending.release()

    def detach(self, timeout: float) -> None:
        """Sends Detach, which may follow an unanswered Attach: the daemon then frees the slot. Raises LinkError."""
        self.send(Detach(_DETACH), timeout)

    def wait_detached(self) -> bool:
        """Waits without a timeout until the daemon has freed the slot. Returns False if the connection ends before."""
        try:
            while not self._detached:
                if not self.read(_READ_S):
                    time.sleep(_OTHER_READS_S)
        except LinkError:
            return self._detached
        return True

    def read(self, timeout: float) -> list[Answer]:
        """Returns the next responses; none if another thread reads, or none arrives in time or within 0.1 s.

        Raises:
            LinkError: The connection is lost.
        """
        if not self._reading.acquire(blocking=False):
            return []
        try:
            return self._read(self._receive_some(timeout))
        except LinkError as error:
            self._broken = str(error)
            self._wake_up()
            raise
        finally:
            self._reading.release()

    def ask(self, request: Request, timeout: float) -> Answer:
        """Returns the response to a request; no other thread may use the link. Raises LinkError."""
        ends = time.monotonic() + timeout
        self.send(request, timeout)
        while (left := ends - time.monotonic()) > 0:
            for answer in self.read(left):
                return answer
        raise LinkError("the daemon does not answer")

    def watch(self) -> bool:
        """Returns True when the daemon closes the connection, False after stop().

        After expect_stray() it also returns True when a response arrives.

        Raises:
            LinkError: Another thread found the connection broken.
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
        """Makes watch() return for responses, too, because a thread stopped waiting for its response."""
        self._watched = select.POLLRDHUP | select.POLLIN
        self._wake_up()

    def expect_no_stray(self) -> None:
        """Makes watch() ignore responses again, because each waiting thread reads its own."""
        self._watched = select.POLLRDHUP

    def stop(self) -> None:
        """Ends watch() and greet(), which then return or raise."""
        self._stopped = True
        self._wake_up()

    def _wake_up(self) -> None:
        with self._waking:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Closes the connection. A thread that is sending gets LinkError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._sending, self._reading:
            self._socket.close()
        with self._waking:
            wake, self._wake = self._wake, -1
            if wake >= 0:
                os.close(wake)

    def disown(self) -> None:
        """Closes the inherited descriptors in a forked child. The connection of its parent stays open."""
        self._socket.close()
        wake, self._wake = self._wake, -1
        if wake >= 0:
            os.close(wake)

    def _send_all(self, data: bytes, ends: float) -> None:
        sent, rest = 0, memoryview(data)
        try:
            while sent < len(data):
                sent += self._send_some(rest[sent:] if sent else data, ends)
                point("link.sent")
        finally:
            if 0 < sent < len(data):
                self._cut_off = True
                self.stop()

    def _send_some(self, data: bytes | memoryview, ends: float) -> int:
        try:
            return self._socket.send(data, _SEND_FLAGS)
        except BlockingIOError:
            if not unix_socket.wait_writable(self._socket, max(0.0, ends - time.monotonic())):
                raise LinkError("the daemon does not accept requests") from None
            return 0
        except OSError as error:
            why = "" if self._socket.fileno() < 0 else f": {error.strerror}"
            raise LinkError(f"the daemon is gone{why}") from error

    def _receive_some(self, timeout: float) -> bytes:
        try:
            data = unix_socket.receive(self._socket, _CHUNK, timeout)
        except OSError as error:
            raise LinkError(f"the daemon is gone: {error.strerror}") from error
        if data == b"":
            raise LinkError("the daemon is gone")
        return data or b""

    def _read(self, data: bytes) -> list[Answer]:
        try:
            answers = [read_answer(body) for body in self._unpacker.feed(data)]
        except ProtocolError as error:
            raise LinkError(f"not a pagetier daemon, or another version: {error}") from error
        for answer in answers:
            self._detached = self._detached or isinstance(answer, Detached)
        return answers


def _check_trust(connected: socket.socket, path: Path) -> None:
    """Checks the peer at a default path. Raises RefusedError if it is not trusted, OSError if the path is gone."""
    if isinstance(path, DefaultSocket) and (why := why_untrusted(path, connected)):
        raise RefusedError(f"cannot trust {path}: {why}, or name the socket to use with PAGETIER_SOCKET")


def _welcome(answers: list[Answer], request: Attach | Observe, descriptors: int) -> Welcome:
    """Returns the only response to a greeting. Raises RefusedError if it is another, LinkError if it is incomplete."""
    if not answers:
        raise LinkError("the daemon is gone")
    answer = answers[0]
    if isinstance(answer, Refusal):
        raise RefusedError(f"the daemon refuses: {answer.reason}")
    if len(answers) > 1 or not isinstance(answer, Welcome):
        raise RefusedError("not a pagetier daemon, or another version")
    if descriptors != (_DESCRIPTORS if isinstance(request, Attach) else _DESCRIPTORS - 1):
        raise LinkError(f"{descriptors} descriptors were received: are too many files open?")
    return answer
