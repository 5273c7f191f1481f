"""The worker's end of the socket pair: receives the daemon's messages and sends reports, from any thread."""

from __future__ import annotations

import os
import select
import socket
import threading
from array import array
from collections import deque
from typing import Final

from pagetier.shm.message_codec import Unpacker, pack
from pagetier.shm.protocol import ProtocolError
from pagetier.tiers.worker_protocol import Command, Report, decode_command

_CHUNK: Final = 1 << 20
_DESCRIPTORS: Final = 3


class Channel:
    """A blocking connection to the daemon. One thread receives, any thread sends."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._end = os.eventfd(0, os.EFD_CLOEXEC)
        self._coming = select.poll()
        for descriptor in (connection.fileno(), self._end):
            self._coming.register(descriptor, select.POLLIN)
        self._sending = threading.Lock()
        self._unpacker = Unpacker()
        self._commands: deque[Command] = deque()
        self.descriptors: list[int] = []

    def receive(self) -> Command | None:
        """Returns the next message; None when the daemon is gone. Raises ProtocolError for an invalid message."""
        while not self._commands:
            data = self._receive_some()
            if not data:
                return None
            self._commands.extend(map(decode_command, self._unpacker.feed(data)))
        return self._commands.popleft()

    def send(self, report: Report) -> None:
        """Sends all of a report. If the daemon is gone the report is lost, and receive() returns None."""
        with self._sending:
            try:
                self._connection.sendall(pack(report))
            except OSError:
                return

    def end(self) -> None:
        """Wakes the receiver, as if the daemon were gone.

        The connection stays open in both directions: a daemon that cannot send would not read the last reports.
        """
        os.eventfd_write(self._end, 1)

    def _receive_some(self) -> bytes:
        if any(descriptor == self._end for descriptor, _ in self._coming.poll()):
            return b""
        try:
            ancillary_bytes = socket.CMSG_LEN(_DESCRIPTORS * array("i").itemsize)
            data, messages, _, _ = self._connection.recvmsg(_CHUNK, ancillary_bytes, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return b""
        for level, kind, body in messages:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self.descriptors += array("i", body).tolist()
        return data


def descriptors_of(channel: Channel) -> tuple[int, int, int]:
    """Returns the descriptors of Serve: index, lock words, arena. Raises ProtocolError unless all of them came."""
    if len(channel.descriptors) != _DESCRIPTORS:
        raise ProtocolError(f"{len(channel.descriptors)} descriptors came with Serve instead of {_DESCRIPTORS}")
    index, locks, arena = channel.descriptors
    return index, locks, arena
