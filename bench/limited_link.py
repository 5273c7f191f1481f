"""A network link of a given rate, as a proxy in front of a TCP server on the loopback address."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from multiprocessing import get_context
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

    _Count: TypeAlias = Synchronized[int]

_PIECE = 1 << 16
_BURST_S = 0.02  # how late a piece may be, on a busy machine, without making the link slower than its rate
_NICE = -15  # a link waits for no processor


class LimitedLink:
    """Forwards connections to a port while the context lasts, in a process of its own.

    All connections share the rate, in each direction.

    Args:
        port: Of the server.

    Attributes:
        port: Of the proxy.
    """

    def __init__(self, port: int) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        fork = get_context("fork")
        self._rate, self._received = fork.Value("q", 1 << 40), fork.Value("q", 0)
        self._process = fork.Process(target=_serve, args=(self._server, port, self._rate, self._received), daemon=True)

    def limit(self, rate: int) -> None:
        """Lets so many bytes a second pass from now on; the link begins without a limit."""
        self._rate.value = rate

    @property
    def received(self) -> int:
        """The bytes that the server has sent until now."""
        return int(self._received.value)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()
        self._server.close()


class _Pace:
    """Says when a piece has passed the link. Thread-safe."""

    def __init__(self, rate: _Count) -> None:
        self._lock, self._rate, self._free_at = threading.Lock(), rate, 0.0

    def wait(self, nbytes: int) -> None:
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic() - _BURST_S) + nbytes / self._rate.value
            late = self._free_at - time.monotonic()
        if late > 0:
            time.sleep(late)


def _serve(listening: socket.socket, port: int, rate: _Count, received: _Count) -> None:
    with contextlib.suppress(PermissionError):
        os.nice(_NICE)
    requests, responses = _Pace(rate), _Pace(rate)
    while True:
        host, _ = listening.accept()
        server = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=_forward, args=(host, server, requests, None), daemon=True).start()
        threading.Thread(target=_forward, args=(server, host, responses, received), daemon=True).start()


def _forward(source: socket.socket, target: socket.socket, pace: _Pace, received: _Count | None) -> None:
    """Forwards what one side sends until it ends."""
    with contextlib.suppress(OSError):
        while piece := source.recv(_PIECE):
            pace.wait(len(piece))
            target.sendall(piece)
            if received is not None:
                with received.get_lock():
                    received.value += len(piece)
    for side in (source, target):
        with contextlib.suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
