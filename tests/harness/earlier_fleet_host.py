"""How a host of the builds before compression judged an object: their reader of headers (commit f2e550fc), as it was.

It is a copy on purpose: fleets have hosts of several builds, and what those do with an object of ours does not change.
"""

from __future__ import annotations

import struct
from enum import Enum

_FIXED = struct.Struct("<8sBBHIQ32s32s")
_HEADER_BYTES = 128


class Judgement(Enum):
    """What such a host does with an object. FOREIGN is absent, and the object stays."""

    READ = "read"
    ABSENT = "absent"
    FOREIGN = "foreign"
    REMOVED = "removed"


def located_size(length: int) -> int:
    """Returns the size that it takes a page to have, from the length of its object."""
    return length - _HEADER_BYTES if length > _HEADER_BYTES else 0


def judged(data: bytes, size: int, codec: int, key_id: int) -> Judgement:
    """Returns what it does with an object.

    Args:
        data: The object.
        size: The size that the page should have: its buffer has the bytes of the header more.
        codec: Its own codec, 0 or 1.
        key_id: Its own key ID.
    """
    length, room = len(data), _HEADER_BYTES + size
    if length > room and codec:
        return Judgement.FOREIGN
    if not _HEADER_BYTES <= length <= room:
        return Judgement.REMOVED
    magic, version, of_object, key_of_object, header_bytes, page_size, _, _ = _FIXED.unpack_from(data)
    if magic != b"ptfleet\0":
        return Judgement.REMOVED
    whole = page_size + _HEADER_BYTES == length
    if header_bytes == _HEADER_BYTES and (version != 1 or (page_size != size and whole)):
        return Judgement.ABSENT
    if (of_object, key_of_object) != (codec, key_id):
        return Judgement.FOREIGN
    return Judgement.READ if whole and page_size == size else Judgement.REMOVED
