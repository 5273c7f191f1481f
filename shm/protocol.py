"""What goes over the control socket: a little-endian u32 with the length of a message, then the message in msgpack.

A client begins with Attach (or Observe) and is answered with Welcome, which carries the segments' descriptors,
or with Refusal. Then it may send requests at any time without waiting; each is answered once, by its number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, TypeAlias, TypeVar

import msgspec

from pagetier.shm._core import FORMAT

PROTOCOL: Final = 3
BUILD: Final = f"pagetier protocol {PROTOCOL} format {FORMAT}"
# Bytes of a message: of any, of an engine's request (400,000 pages), of a greeting.
MESSAGE_LIMIT: Final = 64 << 20
REQUEST_LIMIT: Final = 16 << 20
GREETING_LIMIT: Final = 2 << 20
_LENGTH: Final = struct.Struct("<I")
_T = TypeVar("_T")


class ProtocolError(Exception):
    """The peer sent something that is no message of this protocol."""


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=str.lower):
    """In the message an array: the lower-case name of the class, then its fields."""


class Attach(_Message, frozen=True):
    """From an engine: give me a slot.

    token: the same when the same session attaches again. holds: serials (u64) of the granted pages that the
    session still knows of; all others that were granted to it come back.
    """

    build: str
    token: int
    name: str
    holds: bytes = b""


class Observe(_Message, frozen=True):
    """From who only looks: give me read-only descriptors of index and lock words."""

    build: str


class Welcome(_Message, frozen=True):
    """Goes with the descriptors of index, lock words and, for an engine, the arena."""

    slot: int
    segments_id: int
    populated: bool


class Refusal(_Message, frozen=True):
    """The peer may not attach, or not now."""

    reason: str


class Space(msgspec.Struct, frozen=True, array_like=True):
    """A namespace as the index knows it. digest: 32 bytes; group: a GroupKind; window: tokens, 0 if none."""

    digest: bytes
    name: str
    page_tokens: int
    group: int = 0
    window: int = 0


class Reserve(_Message, frozen=True):
    """Room for a part of each page of a chain, head first.

    keys: 32 bytes each; sizes: u64 each, bytes of the whole page. division: how a page is cut into its parts (u32);
    parts of two divisions never make one page.
    """

    number: int
    space: Space
    part: int
    parts: int
    keys: bytes
    sizes: bytes
    division: int = 0


class Reserved(_Message, frozen=True):
    """Answers Reserve, an element a page: outcomes u8 (core/daemon/reserve.h), entries u32, serials u64."""

    number: int
    outcomes: bytes
    entries: bytes
    serials: bytes
    reason: str = ""


class Fetch(_Message, frozen=True):
    """Bring pages of a chain, head first, from disk into memory. keys: 32 bytes each; timeout: seconds."""

    number: int
    keys: bytes
    timeout: float


class Fetched(_Message, frozen=True):
    """Answers Fetch when all is in memory or can not be had, at the latest at its timeout; a u8 a page.

    0: it is in memory; 1: not yet, it is on its way; 2: it is not there; 3: there is no room for it in memory.
    """

    number: int
    outcomes: bytes
    reason: str = ""


class Flush(_Message, frozen=True):
    """Drop the pages of the namespace whose label or digest (in hex) begins with this; of all where it is None.

    tier: "memory" or "disk": out of that tier alone.
    """

    number: int
    namespace: str | None
    tier: str | None = None


class Flushed(_Message, frozen=True):
    """Answers Flush. kept: pages that are in use. namespaces: the labels of those that matched.

    trouble: why pages that were not in use may be on disk still, "" if none are.
    """

    number: int
    dropped: int
    kept: int
    namespaces: list[str]
    trouble: str = ""


class Save(_Message, frozen=True):
    """Write to disk what is not there yet, and sync. Asked again and again: the daemon writes while somebody asks."""

    number: int


class Saved(_Message, frozen=True):
    """Answers Save at once. pages, bytes: still to write; synced: nothing is, and all is on the device.

    trouble: why it does not get on, "" if it does.
    """

    number: int
    pages: int
    bytes: int
    synced: bool
    trouble: str = ""


class Resize(_Message, frozen=True):
    """From an administrator: other sizes, as texts, by their names in the daemon's configuration ("disk.size")."""

    number: int
    settings: dict[str, str]


class Resized(_Message, frozen=True):
    """Answers Resize. changed: what is otherwise now; trouble: why nothing is, "" if all was done."""

    number: int
    changed: list[str] = []
    trouble: str = ""


class Check(_Message, frozen=True):
    """Walk everything and say what is wrong."""

    number: int


class Findings(_Message, frozen=True):
    """Answers Check."""

    number: int
    findings: list[str]


class Detach(_Message, frozen=True):
    """From an engine that touches nothing any more: its slot may go to another. number: 0 asks for no answer.

    May follow Attach at once, for an engine that leaves while it attaches.
    """

    number: int = 0


class Detached(_Message, frozen=True):
    """Answers Detach once the slot is free."""

    number: int


Request: TypeAlias = Attach | Observe | Reserve | Fetch | Flush | Save | Resize | Check | Detach
Answer: TypeAlias = Welcome | Refusal | Reserved | Fetched | Flushed | Saved | Resized | Findings | Detached

_encoder: Final = msgspec.msgpack.Encoder()
_requests: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)
_answers: Final[msgspec.msgpack.Decoder[Answer]] = msgspec.msgpack.Decoder(Answer)


def pack(message: msgspec.Struct) -> bytes:
    """A message with its length, ready to be sent."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Unpacker:
    """Cuts a stream of bytes into messages. One for each connection."""

    def __init__(self, limit: int = MESSAGE_LIMIT) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def limit(self, nbytes: int) -> None:
        """From now on no message is longer."""
        self._limit = nbytes

    @property
    def held(self) -> int:
        """Bytes of messages that are not complete, or not taken yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that are complete with `data`, as bodies. Raises ProtocolError at a length over the limit."""
        self._buffer += data
        while (body := self._next()) is not None:
            yield body

    def _next(self) -> bytes | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > self._limit:
            raise ProtocolError(f"a message of {length} bytes is longer than {self._limit}")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(memoryview(self._buffer)[_LENGTH.size : end])
        del self._buffer[:end]
        return body


def read_request(body: bytes) -> Request:
    """Raises ProtocolError if it is none."""
    return _decode(_requests, body)


def read_answer(body: bytes) -> Answer:
    """Raises ProtocolError if it is none."""
    return _decode(_answers, body)


def _decode(decoder: msgspec.msgpack.Decoder[_T], body: bytes) -> _T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # msgspec lets the second one through
        raise ProtocolError(f"no message of this protocol: {error}") from error
