"""Encodes and decodes the messages of protocol.py. Each has its length before it, to split a stream of bytes.

Reserve and Reserved are frames, a struct of the core with rows behind it:

    Reserve:   head, label of the namespace, prompts, pages
    Reserved:  head, pages, reason

The core packs and reads them (shm/core/daemon/reserve_message.h). A store waits for this exchange, so the daemon makes
no objects of Python of the usual one. All other messages are in msgpack; none of them begins with the byte of a frame.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import msgspec

from pagetier.shm import _core
from pagetier.shm.page_messages import Space
from pagetier.shm.protocol import (
    MESSAGE_LIMIT,
    Answer,
    PackedAnswer,
    PackedRequest,
    Prompt,
    ProtocolError,
    Request,
    Reserve,
    Reserved,
)

LENGTH: Final = struct.Struct("<I")
_T = TypeVar("_T")
_FRAME: Final = bytes([_core.FRAME])
_NS: Final = 1e9
_FOREVER_NS: Final = 2**64 - 1
_encoder: Final = msgspec.msgpack.Encoder()
_requests: Final[msgspec.msgpack.Decoder[PackedRequest]] = msgspec.msgpack.Decoder(PackedRequest)
_answers: Final[msgspec.msgpack.Decoder[PackedAnswer]] = msgspec.msgpack.Decoder(PackedAnswer)


def pack(message: msgspec.Struct) -> bytes:
    """Returns a message with its length, ready to be sent."""
    if isinstance(message, Reserve):
        return pack_reserve(message)
    if isinstance(message, Reserved):
        return pack_reserved(message)
    body = _encoder.encode(message)
    return LENGTH.pack(len(body)) + body


def read_request(body: bytes) -> Request:
    """Returns the request in the body of a message. Raises ProtocolError if it is not one."""
    return read_reserve(body) if body.startswith(_FRAME) else decode(_requests, body)


def read_answer(body: bytes) -> Answer:
    """Returns the response in the body of a message. Raises ProtocolError if it is not one."""
    return read_reserved(body) if body.startswith(_FRAME) else decode(_answers, body)


def decode(decoder: msgspec.msgpack.Decoder[_T], body: bytes) -> _T:
    """Returns what the body of a message encodes. Raises ProtocolError if the decoder does not accept it."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # msgspec does not convert the second one
        raise ProtocolError(f"no message of this protocol: {error}") from error


def pack_reserve(r: Reserve) -> bytes:
    """Returns a request with its length, ready to be sent.

    Raises TypeError, ValueError or OverflowError if a field does not fit.
    """
    s, ttl_ns = r.space, nanoseconds(r.hint_ttl)
    space = (s.digest, s.name, s.page_tokens, s.group, s.window)
    return _core.pack_reserve(r.number, *space, r.part, r.parts, r.pages, r.division, r.prompts, r.hint, ttl_ns)


def read_reserve(body: bytes) -> Reserve:
    """Returns the request in a frame. Raises ProtocolError if it is not one."""
    fields = _read_frame(_core.read_reserve, body)
    number, digest, name, page_tokens, group, window, part, parts, pages, division, prompts, hint, ttl_ns = fields
    return Reserve(
        number,
        Space(digest, name, page_tokens, group, window),
        part,
        parts,
        pages,
        division,
        None if prompts is None else tuple(map(Prompt._make, prompts)),
        hint,
        math.inf if ttl_ns == _FOREVER_NS else ttl_ns / _NS,
    )


def pack_reserved(answer: Reserved) -> bytes:
    """Returns a response with its length, ready to be sent."""
    return _core.pack_reserved(answer.number, answer.pages, answer.reason)


def read_reserved(body: bytes) -> Reserved:
    """Returns the response in a frame. Raises ProtocolError if it is not one."""
    return Reserved(*_read_frame(_core.read_reserved, body))


def nanoseconds(seconds: float) -> int:
    """Returns a time in ns: 2**64-1 for one that does not end, 0 for a negative one, which no hint may have."""
    time_ns = max(seconds * _NS, 0.0)
    return int(time_ns) if time_ns < _FOREVER_NS else _FOREVER_NS


def _read_frame(read: Callable[[bytes], _T | None], body: bytes) -> _T:
    try:
        fields = read(body)
    except UnicodeDecodeError as error:
        raise ProtocolError(f"no message of this protocol: {error}") from error
    if fields is None:
        raise ProtocolError(f"no message of this protocol: a frame of {len(body)} bytes with other lengths")
    return fields


class Unpacker:
    """Splits a stream of bytes into messages. Each connection has its own."""

    def __init__(self, limit: int = MESSAGE_LIMIT) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def limit(self, nbytes: int) -> None:
        """Sets the maximum length of the messages to come."""
        self._limit = nbytes

    @property
    def buffered(self) -> int:
        """The bytes of messages that are incomplete or not yet taken."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Returns the bodies of the messages that `data` completes. Messages that are not taken stay buffered.

        The iterator raises ProtocolError for a length over the limit.
        """
        size = len(data) - LENGTH.size
        if not self._buffer and 0 <= size <= self._limit and LENGTH.unpack_from(data)[0] == size:  # the usual case
            return iter((data[LENGTH.size :],))
        self._buffer += data
        return iter(self._next, None)

    def _next(self) -> bytes | None:
        if len(self._buffer) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._buffer)
        if length > self._limit:
            raise ProtocolError(f"a message of {length} bytes exceeds the limit of {self._limit}")
        end = LENGTH.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(memoryview(self._buffer)[LENGTH.size : end])
        del self._buffer[:end]
        return body


class ResponseBuffer:
    """What a client has received of the daemon's responses and not passed on yet. For one thread at a time.

    An exception of a signal handler may end each method at any point, and nothing is lost: a step is noted after it is
    done, and is repeated if an exception comes in between. So a response may be passed on twice.

    Attributes:
        chunks: The bytes that were received, to which the receiver of the socket appends.
        answers: The responses that were decoded.
    """

    def __init__(self) -> None:
        self.chunks: deque[bytes] = deque()
        self.answers: deque[Answer] = deque()
        self._needed = LENGTH.size  # bytes in `chunks` before they can have a whole message

    @property
    def has_responses(self) -> bool:
        """Whether there is a response, decoded or not."""
        return bool(self.answers) or sum(map(len, self.chunks)) >= self._needed

    def decode(self) -> None:
        """Decodes whole messages. Raises ProtocolError for one that is not of this protocol."""
        if sum(map(len, self.chunks)) < self._needed:
            return
        data = b"".join(self.chunks)
        answers, at, needed = _split(data)
        rest = deque([data[at:]] if at < len(data) else [])
        self.answers.extend(answers)
        self.chunks, self._needed = rest, needed

    def deliver(self, call: Callable[[Answer], object]) -> None:
        """Passes the decoded responses to `call`."""
        while self.answers:
            answer = self.answers[0]
            call(answer)
            if self.answers and self.answers[0] is answer:
                self.answers.popleft()


def _split(data: bytes) -> tuple[list[Answer], int, int]:
    """Returns the whole messages in `data`, where they end, and the bytes from there on that the next one needs."""
    answers: list[Answer] = []
    at, needed = 0, LENGTH.size
    while len(data) - at >= LENGTH.size:
        (length,) = LENGTH.unpack_from(data, at)
        if length > MESSAGE_LIMIT:
            raise ProtocolError(f"a message of {length} bytes exceeds the limit of {MESSAGE_LIMIT}")
        needed = LENGTH.size + length
        if len(data) - at < needed:
            break
        answers.append(read_answer(data[at + LENGTH.size : at + needed]))
        at, needed = at + needed, LENGTH.size
    return answers, at, needed
