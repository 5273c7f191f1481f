"""A worker as a child process, and the socket pair to it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from ...shm.process import Process
from ...shm.protocol import ProtocolError, Unpacker, pack
from ...tiers.messages import Order, Report, Serve, read_report

# What LMDB allocates for each transaction is kept by the process: giving it back and getting it anew costs more than
# the copying. Both are read by glibc when the process starts.
_ALLOCATOR: Final = {"MALLOC_MMAP_THRESHOLD_": str(4 << 30), "MALLOC_TRIM_THRESHOLD_": str(4 << 30)}
_OWN_PREFIX: Final = "PAGETIER_"


class WorkerProcess:
    """Started by the constructor; ended when `ended` is done. On the loop's thread only.

    Raises OSError if it can not be started.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, hear: Callable[[Report], None]) -> None:
        self._loop = loop
        self._hear = hear
        self._transport: asyncio.Transport | None = None
        self.ended: asyncio.Future[None] = loop.create_future()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._child = _start(theirs)
        self.process = Process.of(self._child.pid)
        self._pidfd = self.process.watch()
        loop.add_reader(self._pidfd, self._gone)

    async def serve(self, order: Serve, descriptors: list[int]) -> None:
        """Tells it what to serve, with the segments' descriptors, and listens. Raises OSError if it is gone."""
        socket.send_fds(self._socket, [pack(order)], descriptors)
        self._transport, _ = await self._loop.create_unix_connection(
            lambda: _Ears(self._hear, self.kill), sock=self._socket
        )

    def send(self, order: Order) -> None:
        """Sends soon; what goes to a dead worker is lost."""
        if self._transport is not None:
            self._transport.write(pack(order))

    def kill(self) -> None:
        """Ends it at once; `ended` follows."""
        self._child.kill()

    @property
    def death(self) -> str:
        """How it ended, when it has."""
        code = self._child.returncode
        return f"was killed by signal {-code}" if code and code < 0 else f"ended with exit code {code}"

    def _gone(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._child.wait()
        if self._transport is not None:
            self._transport.abort()
        else:
            self._socket.close()
        if not self.ended.done():
            self.ended.set_result(None)


def _start(theirs: socket.socket) -> subprocess.Popen[bytes]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_PREFIX)} | _ALLOCATOR
    command = [sys.executable, "-m", "pagetier.tiers.worker", str(theirs.fileno())]
    return subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environ)


class _Ears(asyncio.Protocol):
    def __init__(self, hear: Callable[[Report], None], misunderstood: Callable[[], None]) -> None:
        self._hear = hear
        self._misunderstood = misunderstood
        self._unpacker = Unpacker()

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._unpacker.feed(data):
                self._hear(read_report(body))
        except (ProtocolError, msgspec.MsgspecError):
            self._misunderstood()
