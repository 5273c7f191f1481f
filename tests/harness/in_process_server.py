"""A server in the test's process with limits set by the test, and peers that send arbitrary bytes."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from eventually import PATIENCE_S
from pagetier.daemon.common.loop_clock import give_way
from pagetier.daemon.config.schema import AccessOptions, Config
from pagetier.daemon.index.service import Service
from pagetier.daemon.server.control_socket import Server
from pagetier.daemon.status.publisher import StatusPublisher
from pagetier.shm.geometry import Geometry
from pagetier.shm.message_codec import Unpacker, pack, read_answer
from pagetier.shm.protocol import BUILD, Answer, Attach, Check, Findings, Observe, Request, Welcome
from pagetier.shm.segments import SegmentRequest, Segments, take

SMALL = Geometry(frame_bytes=4096, frames=64, entries=64, spaces=4)


@contextmanager
def serving(folder: Path) -> Iterator[Path]:
    """Serves small segments until the end of the block, and asserts that they are consistent then.

    Yields:
        The socket's path.
    """
    path = folder / "pagetier.sock"
    segments = take(SegmentRequest(f"pagetier-test-{secrets.token_hex(6)}", SMALL, BUILD))
    server = Server(path, AccessOptions(), PATIENCE_S)
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    live = _serve(segments, Config(socket=path), server, ready, stop)
    thread = threading.Thread(target=loop.run_until_complete, args=(live,))
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield path
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_S)
        loop.close()
        findings = segments.owner.check_integrity()
        segments.remove()
    assert findings == []


async def _serve(
    segments: Segments, config: Config, server: Server, ready: threading.Event, stop: asyncio.Event
) -> None:
    service = Service(segments, config, StatusPublisher(segments.owner), asyncio.get_running_loop())
    service.open_to_engines()
    await server.start(service)
    ready.set()
    await stop.wait()
    await see_peers_off()
    server.stop()
    service.close()


async def see_peers_off() -> None:
    """Lets the event loop notice that peers closed their connections, and close its ends."""
    for _ in range(50):
        await give_way()


class Peer:
    """One end of a connection that may send anything. Keeps the locks of its slots, as an engine's mapping does."""

    def __init__(self, path: Path) -> None:
        self._descriptors: list[int] = []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(os.fspath(path))
        self.socket.settimeout(PATIENCE_S)
        self._unpacker = Unpacker()

    def send(self, *messages: Request | bytes) -> None:
        """Sends messages, or raw bytes, in one piece."""
        self.socket.sendall(b"".join(m if isinstance(m, bytes) else pack(m) for m in messages))

    def answer(self) -> Answer | None:
        """Returns the next response, or None if the server closed the connection."""
        data = b""
        while True:
            for body in self._unpacker.feed(data):
                return read_answer(body)
            try:
                data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 16, 3)
            except ConnectionResetError:
                return None
            self._descriptors += descriptors
            if not data:
                return None

    def ask(self, *messages: Request | bytes) -> Answer | None:
        """Sends messages and returns the next response."""
        self.send(*messages)
        return self.answer()

    def attach(self, token: int = 1, name: str = "peer") -> int:
        """Attaches, and returns the slot."""
        return self._welcomed(Attach(BUILD, token, name)).slot

    def observe(self) -> None:
        """Greets the server as an observer."""
        self._welcomed(Observe(BUILD))

    def _welcomed(self, greeting: Attach | Observe) -> Welcome:
        answer = self.ask(greeting)
        assert isinstance(answer, Welcome), answer
        return answer

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        for descriptor in self._descriptors:
            os.close(descriptor)


def serves(path: Path) -> bool:
    """Returns whether an observer is answered that the index is consistent."""
    with Peer(path) as peer:
        peer.observe()
        return peer.ask(Check(1)) == Findings(1, [])


def message(*fields: Any) -> bytes:
    """Returns arbitrary fields as a message with its length."""
    body = msgspec.msgpack.encode(fields)
    return struct.pack("<I", len(body)) + body
