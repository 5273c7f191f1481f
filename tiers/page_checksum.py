"""The checksum of a page's bytes, the same in all tiers.

It is computed before a page is written: by `store_together` of each store, and by the codecs of the fleet. It is
verified in the page's frames after each read: by `verified` in disk/reader.py, and by those codecs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import xxhash

CHECKSUM_BYTES: Final = 16
_SIZE: Final = struct.Struct("<Q")


def page_checksum(key: bytes, size: int, frames: Sequence[memoryview]) -> bytes:
    """Returns the checksum of the frames' first `size` bytes. It covers key and size, so that no other page passes."""
    digest = xxhash.xxh3_128(key + _SIZE.pack(size), seed=int.from_bytes(key[:8], "little"))
    for frame in frames:
        digest.update(frame[:size])
        size -= len(frame)
        if size <= 0:
            break
    return digest.digest()
