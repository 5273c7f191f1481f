"""One connection to the daemon: sending from any thread within a deadline, receiving on one."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from .protocol import (
    Answer,
    Attach,
    Observe,
    ProtocolError,
    Refusal,
    Request,
    Unpacker,
    Welcome,
    pack,
    read_answer,
)

_CHUNK = 256 << 10
_DESCRIPTORS = 3


class LinkError(Exception):
    """There is no daemon to talk to, or no more; the message says why."""


class Greeting(msgspec.Struct, frozen=True):
    """What the daemon answered, and the segments' descriptors, which the receiver closes."""

    welcome: Welcome
    descriptors: tuple[int, ...]


class Link:
    """A connected socket. Raises LinkError where the daemon is gone, does not answer in time or talks nonsense."""

    def __init__(self, path: Path, deadline: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sending = threading.Lock()
        self._unpacker = Unpacker()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._socket.settimeout(deadline)
            self._socket.connect(os.fspath(path))
        except OSError as error:
            self.close()
            raise LinkError(f"{path}: {error.strerror or error}") from error
        self._socket.settimeout(0)

    def greet(self, request: Attach | Observe, deadline: float) -> Greeting:
        """Says who we are. Raises LinkError also if the daemon refuses."""
        ends = time.monotonic() + deadline
        self.send(request, deadline)
        if not self._wait(select.POLLIN, ends):
            raise LinkError("the daemon does not answer")
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, _CHUNK, _DESCRIPTORS)
        except OSError as error:
            raise LinkError(str(error)) from error
        return _greeting(list(self._read(data)), tuple(descriptors))

    def send(self, request: Request, deadline: float) -> None:
        """Sends all of a request, or raises LinkError; then the link is of no use any more."""
        ends = time.monotonic() + deadline
        if not self._sending.acquire(timeout=deadline):
            raise LinkError("the daemon takes no requests")
        try:
            self._send_all(memoryview(pack(request)), ends)
        finally:
            self._sending.release()

    def receive(self) -> Iterator[Answer]:
        """Answers as they come, until stop() is called. On one thread only."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._wake in ready:
                return
            yield from self._read(self._receive_some())

    def stop(self) -> None:
        """Ends receive(). From any thread."""
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """The caller guarantees that no other thread uses the link."""
        self._socket.close()
        if self._wake >= 0:
            os.close(self._wake)
        self._wake = -1

    def _send_all(self, data: memoryview, ends: float) -> None:
        while data:
            if not self._wait(select.POLLOUT, ends):
                raise LinkError("the daemon takes no requests")
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise LinkError(f"the daemon is gone: {error.strerror}") from error

    def _wait(self, event: int, ends: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, event)
        return bool(poll.poll(max(0.0, ends - time.monotonic()) * 1000))

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
                yield read_answer(body)
        except ProtocolError as error:
            raise LinkError(f"not a pagetier daemon, or another version: {error}") from error


def _greeting(answers: list[Answer], descriptors: tuple[int, ...]) -> Greeting:
    if len(answers) == 1 and isinstance(answers[0], Welcome):
        return Greeting(answers[0], descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    if len(answers) == 1 and isinstance(answers[0], Refusal):
        raise LinkError(f"the daemon refuses: {answers[0].reason}")
    raise LinkError("the daemon is gone" if not answers else "not a pagetier daemon, or another version")
