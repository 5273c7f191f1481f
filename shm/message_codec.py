"""Encodes and decodes the messages of protocol.py: Reserve and Reserved as frames, the others in msgpack.

Each message has its length before it, so that a stream of bytes can be split.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import msgspec

from pagetier.shm.protocol import (
    MESSAGE_LIMIT,
    Answer,
    PackedAnswer,
    PackedRequest,
    ProtocolError,
    Request,
    Reserve,
    Reserved,
)
from pagetier.shm.reserve_frames import is_frame, pack_reserve, pack_reserved, read_reserve, read_reserved

LENGTH: Final = struct.Struct("<I")
_T = TypeVar("_T")
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
    return read_reserve(body) if is_frame(body) else decode(_requests, body)


def read_answer(body: bytes) -> Answer:
    """Returns the response in the body of a message. Raises ProtocolError if it is not one."""
    return read_reserved(body) if is_frame(body) else decode(_answers, body)


def decode(decoder: msgspec.msgpack.Decoder[_T], body: bytes) -> _T:
    """Returns what the body of a message encodes. Raises ProtocolError if the decoder does not accept it."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # msgspec does not convert the second one
        raise ProtocolError(f"no message of this protocol: {error}") from error


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
