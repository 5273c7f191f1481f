"""What lies on disk: keys and values of the four databases, and the checksum of a page.

    frames  key, u32 big-endian number of the frame   the frame, always whole, so that freed room always fits again
    pages   key                                       the header: fixed part, then the runs
    spaces  u32 big-endian                            a namespace in msgpack
    about   "about"                                   format, frame_bytes and build in msgpack

A frame is an overflow value of LMDB: pages of the file one behind the other, 16 bytes of LMDB's first. A header
names them as runs, so that a read needs no look at the frames' tree, whose binding touches values one fault a page.
A wrong run can do no harm: the checksum tells.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import xxhash

from ...shm.protocol import Space

FORMAT: Final = 1
PLAIN: Final = 0  # the only codec yet
HEADER_BYTES: Final = 40

_DIGEST_BYTES: Final = 32
_U8, _U32 = 1 << 8, 1 << 32
_FIXED: Final = struct.Struct("<BBHIQQ16s")  # format, codec, 0, space, size, stamp, checksum
_RUN: Final = struct.Struct("<II")
RUN_BYTES: Final = _RUN.size
_NUMBER: Final = struct.Struct(">I")
_SIZE: Final = struct.Struct("<Q")


class RecordError(Exception):
    """A header is none of this format."""


class About(msgspec.Struct, frozen=True, array_like=True):
    """Of an environment: who can read it."""

    format: int
    frame_bytes: int
    build: str


class Run(msgspec.Struct, frozen=True):
    """Frames that lie one behind the other in the file. page: the number of the first one's first page."""

    page: int
    frames: int


class Header(msgspec.Struct, frozen=True):
    """Of one page. runs: where its frames lie, in their order."""

    space: int
    size: int
    stamp: int
    checksum: bytes
    runs: tuple[Run, ...]


def pack_header(header: Header) -> bytes:
    """For the database of pages."""
    fixed = _FIXED.pack(FORMAT, PLAIN, 0, header.space, header.size, header.stamp, header.checksum)
    return fixed + b"".join(_RUN.pack(run.page, run.frames) for run in header.runs)


def unpack_header(value: bytes | memoryview) -> Header:
    """Raises RecordError where it is none of this format."""
    if len(value) < HEADER_BYTES or (len(value) - HEADER_BYTES) % _RUN.size:
        raise RecordError(f"a header of {len(value)} bytes")
    version, codec, _, space, size, stamp, checksum = _FIXED.unpack_from(value)
    if version != FORMAT or codec != PLAIN:
        raise RecordError(f"a header of format {version}, codec {codec}")
    runs = tuple(Run(page, frames) for page, frames in _RUN.iter_unpack(value[HEADER_BYTES:]))
    return Header(space, size, stamp, checksum, runs)


def fits(header: Header, stride: int, file_pages: int) -> bool:
    """Whether all its frames lie in a file of so many pages."""
    return all(run.page + run.frames * stride <= file_pages for run in header.runs)


def makes_sense(space: Space) -> bool:
    """Whether it can be a namespace at all: a damaged one may say anything."""
    numbers_fit = 0 <= space.page_tokens < _U32 and 0 <= space.window < _U32 and 0 <= space.group < _U8
    return len(space.digest) == _DIGEST_BYTES and numbers_fit


def frame_key(key: bytes, number: int) -> bytes:
    """In the database of frames."""
    return key + _NUMBER.pack(number)


def pack_number(number: int) -> bytes:
    """A namespace's key in the database of spaces."""
    return _NUMBER.pack(number)


def unpack_number(packed: bytes) -> int:
    """Undoes pack_number."""
    number: int = _NUMBER.unpack(packed)[0]
    return number


def frames_of(size: int, frame_bytes: int) -> int:
    """How many frames a page takes."""
    return -(-size // frame_bytes)


def checksum(key: bytes, size: int, frames: Sequence[memoryview]) -> bytes:
    """Of the first `size` bytes of the frames. Key and size go in, so that no other page's bytes can pass."""
    digest = xxhash.xxh3_128(key + _SIZE.pack(size), seed=int.from_bytes(key[:8], "little"))
    for frame in frames:
        digest.update(frame[:size])
        size -= len(frame)
        if size <= 0:
            break
    return digest.digest()


def runs_of(pages: Iterable[int], stride: int) -> tuple[Run, ...]:
    """Joins frames that lie one behind the other; `pages` are their first pages in order."""
    runs: list[Run] = []
    for page in pages:
        last = runs[-1] if runs else None
        if last is not None and page == last.page + last.frames * stride:
            runs[-1] = Run(last.page, last.frames + 1)
        else:
            runs.append(Run(page, 1))
    return tuple(runs)
