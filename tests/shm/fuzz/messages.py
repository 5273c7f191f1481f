"""Feeds a connection of the daemon with a fuzzer's input and checks its responses.

messages.c runs it, and finds this module on PYTHONPATH.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import logging
import math
import os
import socket
import sys
import zlib
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from pagetier.daemon.common.log_throttle import LogThrottle
from pagetier.daemon.common.loop_clock import give_way
from pagetier.daemon.config.schema import AccessOptions, Config
from pagetier.daemon.index import scan_queue
from pagetier.daemon.index.service import Service
from pagetier.daemon.server.connection import Connection
from pagetier.daemon.server.limits import ConnectionLimits
from pagetier.daemon.server.server_state import ServerState
from pagetier.daemon.status.publisher import StatusPublisher
from pagetier.shm._core import TierFlag
from pagetier.shm.geometry import Geometry
from pagetier.shm.message_codec import Unpacker, pack, read_answer, read_request
from pagetier.shm.protocol import BUILD, Attach, Detach, Fetch, HintPages, Observe, ProtocolError
from pagetier.shm.segments import SegmentRequest, take

# A process that is preempted during a walk would delay the next one, and its response, by ten times as much.
vars(scan_queue)["_LONG_S"] = math.inf

SMALL = Geometry(frame_bytes=4096, frames=32, entries=32, spaces=3)
_MOST_BYTES = 4096  # that the event loop receives at once
GREETINGS = (b"", pack(Attach(BUILD, 1, "fuzzed")), pack(Observe(BUILD)))


class Transport(asyncio.Transport):
    """A transport that keeps what is sent."""

    def __init__(self, ours: socket.socket) -> None:
        super().__init__({"socket": ours})
        self.sent = bytearray()
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def receive(connection: Connection, data: bytes) -> None:
    """Does what the event loop does with received bytes."""
    while data:
        piece, data = data[:_MOST_BYTES], data[_MOST_BYTES:]
        connection.get_buffer(-1)[: len(piece)] = piece
        connection.buffer_updated(len(piece))


class Fuzzed:
    """One daemon for all inputs; each input leaves nothing behind."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._segments = take(SegmentRequest(name, SMALL, BUILD))
        atexit.register(self._segments.remove)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._service = Service(
            self._segments, Config(), StatusPublisher(self._segments.owner), asyncio.get_running_loop()
        )
        self._service.open_to_engines()
        self._shared = ServerState(
            *(self._service, AccessOptions(), ConnectionLimits(), LogThrottle(logging.getLogger(__name__))),
            memoryview(bytearray(_MOST_BYTES)),
        )

    def take(self, data: bytes) -> None:
        """Feeds one input. Its first byte selects the greeting, its second where the rest is cut in two."""
        greeting, cut, rest = GREETINGS[data[0] % 3 if data else 0], data[1] if len(data) > 1 else 0, data[2:]
        self._loop.run_until_complete(self._speak([greeting, rest[:cut], rest[cut:]], rest, greeted=bool(greeting)))
        findings = self._segments.owner.check_integrity()
        assert findings == [], findings

    async def _speak(self, pieces: list[bytes], rest: bytes, *, greeted: bool) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            transport, connection = Transport(ours), Connection(self._shared)
            connection.connection_made(transport)
            for piece in filter(None, pieces):
                if not transport.closing:
                    receive(connection, piece)
            for _ in range(3 + len(requests(rest))):  # as many turns as needed if each request is a long one
                await give_way()
            self._check(transport, rest if greeted else b"")
            transport.close()
            connection.connection_lost(None)
            self._forget()

    def _check(self, transport: Transport, said: bytes) -> None:
        """Expects that everything sent is a response and each request has one; fetches may still wait."""
        answers = [read_answer(body) for body in Unpacker().feed(bytes(transport.sent))]
        numbers = [answer.number for answer in answers if hasattr(answer, "number")]
        asked = requests(said)
        if not transport.closing and asked:
            must = sorted(request.number for request in asked if hasattr(request, "number") and not is_late(request))
            may = sorted(request.number for request in asked if hasattr(request, "number"))
            refused = sum(1 for answer in answers if not hasattr(answer, "number"))
            assert len(numbers) + refused >= len(must), (asked, answers)
            assert all(number in may for number in numbers), (asked, answers)

    def _forget(self) -> None:
        owner = self._segments.owner
        for attachment in owner.attachments():
            self._service.detach(attachment.slot)
        owner.settle()
        owner.flush(-1, TierFlag.BOTH)


def is_late(request: Any) -> bool:
    """Returns whether the response to a request may come later, or not at all."""
    return isinstance(request, Fetch | Detach) or (isinstance(request, HintPages) and not request.number)


def requests(said: bytes) -> list[Any]:
    """Returns the requests of a peer; none if some of its bytes are not valid."""
    try:
        return [read_request(body) for body in Unpacker().feed(said)]
    except ProtocolError:
        return []


def begin(counters: int, count: int) -> Fuzzed:
    """Begins to count the lines of the daemon and of the protocol in `count` bytes at the address `counters`."""
    logging.disable()
    fuzzed = Fuzzed(os.environ["FUZZ_SEGMENTS"])
    seen = (ctypes.c_uint8 * count).from_address(counters)
    rooms = tuple(str(Path(sys.modules[name].__file__ or "").parent) for name in ("pagetier.daemon", "pagetier.shm"))
    places: dict[tuple[CodeType, int], int] = {}

    def count_line(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(rooms):
            return None
        line = frame.f_code, frame.f_lineno
        place = places.get(line)
        if place is None:
            place = zlib.crc32(f"{frame.f_code.co_filename}:{frame.f_lineno}".encode()) % count
            places[line] = place
        seen[place] = min(255, seen[place] + 1)
        return count_line

    sys.settrace(count_line)
    return fuzzed
