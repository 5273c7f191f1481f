"""A client's connection to the daemon: any thread sends within a timeout, one thread at a time receives."""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from pagetier.shm import client_socket, clock
from pagetier.shm.client_socket import LinkError, RequestSender, SentRequest
from pagetier.shm.clock import Deadline
from pagetier.shm.failpoints import point
from pagetier.shm.message_codec import ResponseBuffer, pack
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
from pagetier.shm.socket_path import DefaultSocket, misspelt_variable
from pagetier.shm.socket_trust import peer_credentials, why_untrusted

__all__ = ["Greeting", "Link", "LinkError", "RefusedError"]

_CHUNK = 64 << 10
_DESCRIPTORS = 3
_DETACH = 1  # the number of a link's only numbered Detach
_READ_S = 60.0
_OTHER_READS_S = 0.005


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

    An exception of a signal handler may end send() and deliver() at any point. It leaves no lock taken and loses no
    response: what was received and not delivered yet stays, and watch() returns for it.

    Attributes:
        reader: The identifier of the thread that receives; 0 if there is none.

    Raises LinkError, also in all methods below, if the daemon is gone, late, or violates the protocol; RefusedError if
    the path is a default one, and another user could have placed the socket there, or a misspelt variable is set.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        self.reader = 0
        self._responses = ResponseBuffer()
        # Reentrant because stop() may be called while this thread collects garbage, and as in RequestSender.
        self._waking, self._reading = threading.RLock(), threading.RLock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)  # closes itself if there is no eventfd
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._sender = RequestSender(self._socket, self.stop)
        self._stopped = False
        self._detached = False
        self._broken = ""
        self._watched = self._polled = select.POLLRDHUP  # what watch() is to wait for, and what it waits for
        try:
            if isinstance(path, DefaultSocket) and (name := misspelt_variable()):
                raise RefusedError(f"the variable {name} is unknown; did you mean PAGETIER_SOCKET?")
            client_socket.connect(self._socket, path, timeout)
            _check_trust(self._socket, path)
        except OSError as error:
            self.close()
            raise LinkError(f"{path}: {client_socket.why_not_connected(path, error)}") from error
        except RefusedError:
            self.close()
            raise
        client_socket.limit_receiving(self._socket)

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
        deadline = Deadline(timeout)
        self.send(request, timeout)
        point("link.asked")
        if not client_socket.wait_readable(self._socket, deadline.left, self._wake):
            raise LinkError("the daemon does not answer")
        try:
            data, descriptors = client_socket.receive_with_descriptors(self._socket, _CHUNK, _DESCRIPTORS)
        except OSError as error:
            raise LinkError(f"the daemon is gone: {error.strerror}") from error
        try:
            self._responses.chunks.append(data)
            answers = self._decode()
            self._responses.answers.clear()
            return Greeting(_welcome(answers, request, len(descriptors)), descriptors)
        except LinkError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    def send(self, request: Request, timeout: float, owner: SentRequest | None = None) -> None:
        """Sends the whole request within `timeout` seconds. A request that was sent only in part stops the link.

        Args:
            request: The request.
            timeout: The seconds for sending.
            owner: Learns that the request was sent, also if an interrupt comes at that moment.

        Raises:
            LinkError: The request is too long, or was not sent in time, or the connection was lost or stopped by a
                partial request.
        """
        data = pack(request)
        if len(data) > REQUEST_LIMIT:
            raise LinkError(f"a request of {len(data)} bytes is longer than {REQUEST_LIMIT}: ask for fewer pages")
        self._sender.send(data, timeout, owner)

    def detach(self, timeout: float) -> None:
        """Sends Detach, which may follow an unanswered Attach: the daemon then frees the slot. Raises LinkError."""
        self.send(Detach(_DETACH), timeout)

    def wait_detached(self) -> bool:
        """Waits without a timeout until the daemon has freed the slot. Returns False if the connection ends before."""
        try:
            while not self._detached:
                if not self.read(_READ_S):
                    clock.sleep(_OTHER_READS_S)
        except LinkError:
            return self._detached
        return True

    def read(self, timeout: float) -> list[Answer]:
        """Returns the next responses; none if another thread reads, or none arrives in time or within 0.1 s."""
        answers: list[Answer] = []
        self.deliver(timeout, answers.append)
        return answers

    def deliver(self, timeout: float, call: Callable[[Answer], object]) -> bool:
        """Passes responses to `call`, after an interrupt twice. Returns False if another reads. Raises LinkError."""
        thread = threading.get_ident()
        try:
            if not self._reading.acquire(blocking=False):
                return False
            self.reader = thread
            self._receive(timeout)
            self._responses.deliver(call)
            return True
        except LinkError as error:
            self._broken = str(error)
            self._wake_up()
            raise
        except BaseException:
            self._wake_up()  # an interrupt: the background thread delivers what is left
            raise
        finally:
            if self.reader == thread:
                self.reader = 0
            try:  # noqa: SIM105  # as in RequestSender
                self._reading.release()
            except RuntimeError:
                pass

    def ask(self, request: Request, timeout: float) -> Answer:
        """Returns the response to a request; no other thread may use the link."""
        deadline = Deadline(timeout)
        self.send(request, timeout)
        while left := deadline.left:
            for answer in self.read(left):
                return answer
        raise LinkError("the daemon does not answer")

    def watch(self) -> bool:
        """Returns True when the daemon closes the connection or responses are left, False after stop().

        After expect_stray() it also returns True when a response arrives.

        Raises:
            LinkError: Another thread found the connection broken.
        """
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        while not self._stopped:
            if self._broken:
                raise LinkError(self._broken)
            if self._responses.has_responses:  # an interrupt has left them, or a thread is about to deliver them
                return True
            self._polled = self._watched
            poll.register(self._socket, self._polled)
            ready = client_socket.polled(poll, math.inf)
            if self._wake in ready:
                os.eventfd_read(self._wake)
            elif ready:
                return True
        return False

    def expect_stray(self) -> None:
        """Makes watch() return for responses, too, because a thread stopped waiting for its response."""
        self._watched = select.POLLRDHUP | select.POLLIN
        if self._polled != self._watched:
            self._wake_up()

    def expect_no_stray(self) -> None:
        """Makes watch() ignore responses again. For its thread, and not while another calls expect_stray()."""
        self._watched = self._polled = select.POLLRDHUP

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
        with self._sender.lock, self._reading:
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

    def _receive(self, timeout: float) -> None:
        """Receives and decodes, unless an interrupt has left something."""
        try:
            if not self._responses.has_responses:
                client_socket.receive(self._socket, self._responses.chunks, _CHUNK, timeout)
        except OSError as error:
            raise LinkError(f"the daemon is gone: {error.strerror}") from error
        self._decode()

    def _decode(self) -> list[Answer]:
        try:
            self._responses.decode()
        except ProtocolError as error:
            raise LinkError(f"not a pagetier daemon, or another version: {error}") from error
        if self._responses.chunks and not self._responses.chunks[-1]:  # the end of the connection
            raise LinkError("the daemon is gone")
        answers = list(self._responses.answers)
        self._detached = self._detached or Detached in map(type, answers)
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
