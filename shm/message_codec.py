"""Encodes and decodes the messages of protocol.py: Reserve and Reserved as frames, the others in msgpack."""

from __future__ import annotations

import struct
from typing import Final, TypeVar

import msgspec

from pagetier.shm.protocol import Answer, PackedAnswer, PackedRequest, ProtocolError, Request, Reserve, Reserved
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
