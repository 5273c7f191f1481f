"""The format on disk: keys and values of the databases, and the checksum of a page.

    frames  key, u32 big-endian number of the frame   the frame, always whole, so that freed room always fits again;
                                                      only in the lmdb store
    pages   key                                       the header: fixed part, then the extents (format 1: no history)
    spaces  u32 big-endian                            a namespace in msgpack
    about   "about"                                   format, frame_bytes and build in msgpack

A tier with compressed pages has format 3, and its frame_bytes are those of a slot. Its records of pages that are not
compressed are those of format 2.

A frame is an overflow value of LMDB: consecutive pages of the file, of which the first begins with 16 bytes of LMDB's
own. A header names them as extents, so that a read does not search the tree of frames, whose binding touches values one
page fault at a time. A wrong extent is harmless: the checksum does not match then.

Listings read the headers of all pages in C: shm/core/daemon/disk_records.h has this format, too.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable
from typing import Final

import msgspec

from pagetier.shm._core import HISTORY_BYTES, KEY_BYTES
from pagetier.shm.protocol import Space

FORMAT: Final = 2
OLD_FORMAT: Final = 1  # still read
COMPRESSED_FORMAT: Final = 3  # of tiers with compressed pages, and of the headers of such pages
READABLE: Final = frozenset((OLD_FORMAT, FORMAT))
PLAIN: Final = 0
COMPRESSED: Final = 1
_CODECS: Final = {OLD_FORMAT: PLAIN, FORMAT: PLAIN, COMPRESSED_FORMAT: COMPRESSED}
OLD_HEADER_BYTES: Final = 40
HEADER_BYTES: Final = 80
NO_HISTORY: Final = bytes(HISTORY_BYTES)

_U8, _U32 = 1 << 8, 1 << 32
_FIXED: Final = struct.Struct("<BBHIQQ16s")  # format, codec, 0, space, size, stamp, checksum
_MORE: Final = struct.Struct(f"<{HISTORY_BYTES}sQQ")  # history, serial (0 in the lmdb store), bytes if compressed
_EXTENT: Final = struct.Struct("<II")
EXTENT_BYTES: Final = _EXTENT.size
_NUMBER: Final = struct.Struct(">I")


class RecordError(Exception):
    """A header does not have this format."""


class About(msgspec.Struct, frozen=True, array_like=True):
    """The description of an environment, which says what can read it."""

    format: int
    frame_bytes: int
    build: str


class FrameExtent(msgspec.Struct, frozen=True):
    """Consecutive frames in the file.

    `page` is the number of the first page of the first one; in the files store, of its slot.
    """

    page: int
    frames: int


class Header(msgspec.Struct, frozen=True):
    """The header of a page. `extents`: the places of its frames in their order; `history`: what is known of its uses.

    `serial`: the number of this write in the files store. `coded`: the bytes of a compressed page, 0 of any other.
    """

    space: int
    size: int
    stamp: int
    checksum: bytes
    extents: tuple[FrameExtent, ...]
    history: bytes = NO_HISTORY
    serial: int = 0
    coded: int = 0

    @property
    def stored_bytes(self) -> int:
        """The bytes that are stored of the page."""
        return self.coded or self.size


def pack_header(header: Header) -> bytes:
    """Encodes a header for the database of pages."""
    version = COMPRESSED_FORMAT if header.coded else FORMAT
    fixed = _FIXED.pack(version, _CODECS[version], 0, header.space, header.size, header.stamp, header.checksum)
    return (
        fixed
        + _MORE.pack(header.history, header.serial, header.coded)
        + b"".join(_EXTENT.pack(extent.page, extent.frames) for extent in header.extents)
    )


def unpack_header(value: bytes | memoryview, formats: Container[int] = READABLE) -> Header:
    """Decodes a header. Raises RecordError for another format than these."""
    begin = OLD_HEADER_BYTES if value[:1] == bytes([OLD_FORMAT]) else HEADER_BYTES
    if len(value) < begin or (len(value) - begin) % _EXTENT.size:
        raise RecordError(f"a header has {len(value)} bytes")
    version, codec, _, space, size, stamp, checksum = _FIXED.unpack_from(value)
    if version not in formats or codec != _CODECS[version]:
        raise RecordError(f"a header has format {version} and codec {codec}")
    more = (NO_HISTORY, 0, 0) if version == OLD_FORMAT else _MORE.unpack_from(value, OLD_HEADER_BYTES)
    history, serial, coded = more
    extents = tuple(FrameExtent(page, frames) for page, frames in _EXTENT.iter_unpack(value[begin:]))
    return Header(space, size, stamp, checksum, extents, history, serial, coded)


def fits(header: Header, stride: int, file_pages: int) -> bool:
    """Returns whether all frames lie within a file of `file_pages` pages."""
    return all(extent.page + extent.frames * stride <= file_pages for extent in header.extents)


def makes_sense(space: Space) -> bool:
    """Returns whether a namespace from the disk is valid; a damaged one may contain anything."""
    numbers_fit = 0 <= space.page_tokens < _U32 and 0 <= space.window < _U32 and 0 <= space.group < _U8
    return len(space.digest) == KEY_BYTES and numbers_fit


def frame_key(key: bytes, number: int) -> bytes:
    """Returns a frame's key in the database of frames."""
    return key + _NUMBER.pack(number)


def pack_number(number: int) -> bytes:
    """Returns a namespace's key in the database of spaces."""
    return _NUMBER.pack(number)


def unpack_number(packed: bytes) -> int:
    """Decodes what pack_number() encoded."""
    number: int = _NUMBER.unpack(packed)[0]
    return number


def newest_of(version: int) -> int:
    """Returns the format in which a tier of this format is written from now on."""
    return FORMAT if version == OLD_FORMAT else version


def frames_of(size: int, frame_bytes: int) -> int:
    """Returns the number of frames of a page."""
    return -(-size // frame_bytes)


def extents_of(pages: Iterable[int], stride: int) -> tuple[FrameExtent, ...]:
    """Joins consecutive frames to extents; `pages` are their first pages in order."""
    extents: list[FrameExtent] = []
    for page in pages:
        last = extents[-1] if extents else None
        if last is not None and page == last.page + last.frames * stride:
            extents[-1] = FrameExtent(last.page, last.frames + 1)
        else:
            extents.append(FrameExtent(page, 1))
    return tuple(extents)
