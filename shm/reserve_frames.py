"""Reserve and Reserved as frames: a struct of the core with rows behind it. All other messages are in msgpack.

    Reserve:   head, label of the namespace, prompts, pages
    Reserved:  head, pages, reason

The core packs and reads them (shm/core/daemon/reserve_message.h). A store waits for this exchange, so the daemon makes
no objects of Python of the usual one. A frame begins with a byte with which no message in msgpack begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeVar

from pagetier.shm import _core
from pagetier.shm.page_messages import Space
from pagetier.shm.protocol import Prompt, ProtocolError, Reserve, Reserved

_T = TypeVar("_T")
_NS: Final = 1e9
_FOREVER_NS: Final = 2**64 - 1
_FIRST: Final = bytes([_core.FRAME])


def is_frame(body: bytes) -> bool:
    """Returns whether the body of a message is a frame."""
    return body.startswith(_FIRST)


def pack_reserve(r: Reserve) -> bytes:
    """Returns a request with its length, ready to be sent.

    Raises TypeError, ValueError or OverflowError if a field does not fit.
    """
    s, ttl_ns = r.space, nanoseconds(r.hint_ttl)
    space = (s.digest, s.name, s.page_tokens, s.group, s.window)
    return _core.pack_reserve(r.number, *space, r.part, r.parts, r.pages, r.division, r.prompts, r.hint, ttl_ns)


def read_reserve(body: bytes) -> Reserve:
    """Returns the request in a frame. Raises ProtocolError if it is not one."""
    fields = _read(_core.read_reserve, body)
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
    return Reserved(*_read(_core.read_reserved, body))


def nanoseconds(seconds: float) -> int:
    """Returns a time in ns: 2**64-1 for one that does not end, 0 for a negative one, which no hint may have."""
    time_ns = max(seconds * _NS, 0.0)
    return int(time_ns) if time_ns < _FOREVER_NS else _FOREVER_NS


def _read(read: Callable[[bytes], _T | None], body: bytes) -> _T:
    try:
        fields = read(body)
    except UnicodeDecodeError as error:
        raise ProtocolError(f"no message of this protocol: {error}") from error
    if fields is None:
        raise ProtocolError(f"no message of this protocol: a frame of {len(body)} bytes with other lengths")
    return fields
