"""Encodes and decodes the messages of protocol.py."""

from __future__ import annotations

import struct
from typing import Final, TypeVar

import msgspec

from pagetier.shm.protocol import Answer, ProtocolError, Request

LENGTH: Final = struct.Struct("<I")
_T = TypeVar("_T")
_encoder: Final = msgspec.msgpack.Encoder()
_requests: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)
_answers: Final[msgspec.msgpack.Decoder[Answer]] = msgspec.msgpack.Decoder(Answer)


def pack(message: msgspec.Struct) -> bytes:
    """Returns a message with its length, ready to be sent."""
    body = _encoder.encode(message)
    return LENGTH.pack(len(body)) + body


def read_request(body: bytes) -> Request:
    """Returns the request in the body of a message. Raises ProtocolError if it is not one."""
    return decode(_requests, body)


def read_answer(body: bytes) -> Answer:
    """Returns the response in the body of a message. Raises ProtocolError if it is not one."""
    return decode(_answers, body)


def decode(decoder: msgspec.msgpack.Decoder[_T], body: bytes) -> _T:
    """Returns what the body of a message encodes. Raises ProtocolError if the decoder does not accept it."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # msgspec does not convert the second one
        raise ProtocolError(f"no message of this protocol: {error}") from error
