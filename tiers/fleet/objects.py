"""The format of an object: its name and its header; see docs/design/fleet.md."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from pagetier.shm._core import page_names
from pagetier.shm.protocol import Space
from pagetier.tiers.base import PageName

MAGIC: Final = b"ptfleet\0"
VERSION: Final = 1
PLAIN, AES_256_GCM = 0, 1
COMPRESSED: Final = 2  # a bit of the codec
_FIXED: Final = struct.Struct("<8sBBHIQ32s32s")
_CHECKED: Final = struct.Struct("<16s12s12s")
COVERED_BYTES: Final = _FIXED.size
HEADER_BYTES: Final = _FIXED.size + _CHECKED.size
KEY_FILE_BYTES: Final = 32
NONCE_BYTES: Final = 12
PROOF_BYTES: Final = 12


def object_name(prefix: str, page: PageName) -> str:
    """Returns the name of a page's object. The namespace is in it for listing, life-cycle rules and deletion."""
    return f"{prefix}/{page.space[:8].hex()}/{page.key.hex()}"


def object_names(prefix: str, pages: bytes, table: Sequence[Space]) -> list[str]:
    """Returns what object_name() returns for each of many pages, in a small part of the time.

    Args:
        prefix: The first part of all names.
        pages: Rows of PAGES_TO_FIND.
        table: The namespaces.
    """
    return page_names(pages, [f"{prefix}/{space.digest[:8].hex()}/" for space in table])


class ObjectHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first HEADER_BYTES of an object.

    Attributes:
        check: The checksum, or the tag, which covers `covered`, too.
        proof: Shows a holder of the fleet key that the object was written with it, whatever happened to the page.
        covered: The bytes before `check`.
    """

    magic: bytes
    version: int
    codec: int
    key_id: int
    header_bytes: int
    size: int
    page: PageName
    check: bytes
    nonce: bytes
    proof: bytes
    covered: bytes


def unpack_header(data: bytes) -> ObjectHeader:
    """Decodes a header of any content."""
    magic, version, codec, key_id, header_bytes, size, key, space = _FIXED.unpack_from(data)
    check, nonce, proof = _CHECKED.unpack_from(data, COVERED_BYTES)
    return ObjectHeader(
        magic=magic,
        version=version,
        codec=codec,
        key_id=key_id,
        header_bytes=header_bytes,
        size=size,
        page=PageName(space, key),
        check=check,
        nonce=nonce,
        proof=proof,
        covered=data[:COVERED_BYTES],
    )


def pack_header(codec: int, key_id: int, page: PageName, size: int) -> bytes:
    """Returns the bytes of a header before `check`."""
    return _FIXED.pack(MAGIC, VERSION, codec, key_id, HEADER_BYTES, size, page.key, page.space)


def pack_check(check: bytes, nonce: bytes = b"", proof: bytes = b"") -> bytes:
    """Returns the bytes of a header from `check` on."""
    return _CHECKED.pack(check, nonce, proof)


def copy_to_frames(data: memoryview, frames: Sequence[memoryview]) -> None:
    """Copies an object's bytes after the header to the frames."""
    at = 0
    for part in parts_of(frames, len(data)):
        part[:] = data[at : at + len(part)]
        at += len(part)


def parts_of(frames: Sequence[memoryview], size: int) -> Iterator[memoryview]:
    """Yields the parts of the frames that contain the page."""
    for frame in frames:
        if size <= 0:
            return
        yield frame[:size]
        size -= len(frame)
