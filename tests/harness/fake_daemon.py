"""A simulated daemon that answers when and as the test decides, with segments of its own."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from anonymous_segments import DAY_NS, Memory, attach
from client_threads import client_threads, clients_end
from eventually import PATIENCE_S
from pagetier.shm.geometry import Geometry
from pagetier.shm.message_codec import LENGTH, Unpacker, pack, read_request, read_reserved
from pagetier.shm.protocol import Answer, Attach, Detach, Detached, Refusal, Request, Reserve, Reserved, Welcome

GEOMETRY = Geometry(frame_bytes=4096, frames=64, entries=64, spaces=4)


class Peer:
    """One connection: the requests received, and a way to answer them."""

    def __init__(self, daemon: FakeDaemon, connection: socket.socket) -> None:
        self.daemon = daemon
        self.connection = connection
        self.slot = -1
        self.over = threading.Event()
        self._unpacker = Unpacker()
        self._requests: list[Request] = []

    def next(self) -> Request:
        """Returns the next request. Raises EOFError at the end."""
        while not self._requests:
            data = self.connection.recv(1 << 16)
            if not data:
                raise EOFError
            self._requests += map(read_request, self._unpacker.feed(data))
        return self._requests.pop(0)

    def send(self, *answers: Answer) -> None:
        """Sends all responses in one piece."""
        self.connection.sendall(b"".join(map(pack, answers)))

    def welcome(self, descriptors: int = 3) -> None:
        """Answers Attach with this number of descriptors. Raises EOFError as next() does, and for Detach."""
        request = self.next()
        self.daemon.first_requests.append(request)
        if isinstance(request, Detach):
            raise EOFError  # not before Attach: the daemon closes such a connection
        if isinstance(request, Attach):
            self.daemon.greetings.append(request)
            self.slot = attach(self.daemon.owner, request.token)
        answer = pack(Welcome(self.slot, 7, populated=False))
        socket.send_fds(self.connection, [answer], self.daemon.memory.descriptors[:descriptors])


class FakeDaemon:
    """Serves each connection with `behave(peer)` on a thread until it returns or the peer disconnects.

    By default it accepts each Attach and handles the requests, which are put into `asked`, where the test answers them.
    """

    def __init__(self, behave: Callable[[Peer], None] | None = None) -> None:
        self.memory = Memory(GEOMETRY)
        self.owner = self.memory.adopted()
        self.asked: queue.Queue[tuple[Peer, Reserve]] = queue.Queue()
        self.greetings: list[Attach] = []
        self.first_requests: list[Request] = []
        self._behave = behave or self.serve
        self._folder = tempfile.TemporaryDirectory(prefix="pagetier-test-")
        self.socket = Path(self._folder.name) / "pagetier.sock"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.peers: list[Peer] = []
        self._threads: list[threading.Thread] = []
        self._other_clients = client_threads()

    def serve(self, peer: Peer) -> None:
        """Accepts Attach, and confirms Detach as a daemon does; otherwise the client's thread would never end."""
        peer.welcome()
        while True:
            request = peer.next()
            if isinstance(request, Detach) and request.number:
                peer.send(Detached(request.number))
            else:
                self.received(peer, request)

    def received(self, peer: Peer, request: Request) -> None:
        """Queues a reservation for the test, and ignores all other requests."""
        if isinstance(request, Reserve):
            self.asked.put((peer, request))

    def next(self) -> tuple[Peer, Reserve]:
        """Returns the next request and its connection."""
        return self.asked.get(timeout=PATIENCE_S)

    def answer_to(self, peer: Peer, request: Reserve) -> Reserved:
        """Returns the response of the real index."""
        space = self.owner.space(request.space.digest, request.space.name, request.space.page_tokens, 0, 0)
        response, *_ = self.owner.reserve(peer.slot, space, DAY_NS, 0, pack(request))
        return read_reserved(response[LENGTH.size :])

    def hang_up(self) -> None:
        """Closes all connections."""
        for peer in self.peers:
            peer.over.set()
            with contextlib.suppress(OSError):
                peer.connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.peers.append(Peer(self, connection))
            self._start(self._serve, self.peers[-1])

    def _serve(self, peer: Peer) -> None:
        with peer.connection, contextlib.suppress(EOFError, OSError):
            self._behave(peer)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def __enter__(self) -> Self:
        self._listener.bind(os.fspath(self.socket))
        self._listener.listen()
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A client that was closed has a thread until a daemon confirms that its slot is free: no other one would.
        assert error is not None or self._behave != self.serve or clients_end(self._other_clients)
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self.memory.close()
        self._folder.cleanup()
        assert error is not None or not any(thread.is_alive() for thread in self._threads)


def refuse(reason: str) -> Callable[[Peer], None]:
    """Returns a behaviour that rejects each Attach."""

    def behave(peer: Peer) -> None:
        peer.next()
        peer.send(Refusal(reason))

    return behave
