"""Decides whether an object is a page's, and counts those that are not."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from pagetier.tiers.base import PageName, ReadOutcome, ReadResult
from pagetier.tiers.fleet.object_lengths import PageSizes, page_size
from pagetier.tiers.fleet.object_store import ABSENT
from pagetier.tiers.fleet.objects import (
    COMPRESSED,
    HEADER_BYTES,
    MAGIC,
    PLAIN,
    VERSION,
    ObjectHeader,
    copy_to_frames,
    unpack_header,
)
from pagetier.tiers.fleet.page_codecs import PageCodec

_ABSENT: Final = ReadResult(ReadOutcome.ABSENT)
_EXACT: Final = ReadResult(ReadOutcome.EXACT)


class ObjectJudge:
    """Judges objects by one codec. Thread-safe.

    Args:
        codec: How the pages of this fleet are protected.
        sizes: Is notified of objects that are not compressed.

    Attributes:
        damaged: The objects that no fleet can read.
        foreign: The objects that may be right for a fleet with another key.
    """

    def __init__(self, codec: PageCodec, sizes: PageSizes) -> None:
        self._codec = codec
        self._sizes = sizes
        self._lock = threading.Lock()
        self._other_versions = 0
        self.damaged = self.foreign = 0

    @property
    def note(self) -> str:
        """What an administrator should know of the objects, "" if nothing."""
        if self.foreign:
            return "objects were written with another fleet key: compare remote.key_file"
        return "objects are of another version: choose another prefix in remote.url" if self._other_versions else ""

    def judge(
        self, name: PageName, size: int, frames: Sequence[memoryview], length: int, data: memoryview
    ) -> ReadResult:
        """Returns what an object is, after filling the frames from it and verifying them there.

        Args:
            name: The page that it should be.
            size: The page's size.
            frames: The page's frames; none to look at the header alone.
            length: The object's length, or ABSENT.
            data: The memory that it is in, if it is not longer than that.
        """
        if length == ABSENT:
            return _ABSENT
        if length > len(data) and self._codec.codec != PLAIN:
            return self._reject_foreign()  # nothing of it was read
        if not HEADER_BYTES <= length <= len(data):
            return self._reject(f"the object has {length} bytes")
        header = unpack_header(bytes(data[:HEADER_BYTES]))  # once: others may write to the buffer
        if header.magic != MAGIC:
            return self._reject("the object has another header")
        if _is_other(header, size, length):
            if not header.codec & COMPRESSED:
                self._sizes.note_uncompressed(name.space, header.size)
            self._other_versions += header.version != VERSION
            return _ABSENT
        return self._judge_own(name, frames, header, data[:length])

    def _judge_own(
        self, name: PageName, frames: Sequence[memoryview], header: ObjectHeader, data: memoryview
    ) -> ReadResult:
        """Judges an object of this version, and fills the frames from it."""
        if (header.codec & ~COMPRESSED, header.key_id) != (self._codec.codec, self._codec.key_id):
            return self._reject_foreign()
        wrong = _wrong_header(header, name, len(data))
        if not wrong and frames:
            wrong = "" if self._fills(frames, header, data[HEADER_BYTES:]) else "the checksum does not match"
        if not wrong:
            return _EXACT
        return self._reject(wrong) if self._is_own(header, name) else self._reject_foreign()

    def _fills(self, frames: Sequence[memoryview], header: ObjectHeader, data: memoryview) -> bool:
        """Fills the frames, and returns whether they are exact."""
        # The bytes are verified where they stay, in frames that only this process uses.
        if header.codec & COMPRESSED:
            return self._codec.expand(header, data, frames)
        copy_to_frames(data, frames)
        return self._codec.verify(header, frames)

    def _is_own(self, header: ObjectHeader, name: PageName) -> bool:
        """Returns whether this fleet's key wrote an object, so that it is right for no other fleet."""
        return header.proof in (self._codec.proof(name), self._codec.proof(header.page)) or self._codec.codec == PLAIN

    def _reject(self, why: str) -> ReadResult:
        with self._lock:
            self.damaged += 1
        return ReadResult(ReadOutcome.DAMAGED, why)

    def _reject_foreign(self) -> ReadResult:
        with self._lock:
            self.foreign += 1
        return _ABSENT


def _is_other(header: ObjectHeader, size: int, length: int) -> bool:
    """Returns whether an object that looks whole is of another version or size."""
    if header.header_bytes != HEADER_BYTES:
        return False
    return header.version != VERSION or (header.size != size and header.size == _size_of(header, length))


def _wrong_header(header: ObjectHeader, page: PageName, length: int) -> str:
    """Returns why an object of this length is not the one of a page, or ""."""
    if header.header_bytes != HEADER_BYTES:
        return "the object has another header"
    if header.size != _size_of(header, length):
        return f"an object of {header.size} bytes has the length of one of {_size_of(header, length)}"
    return "" if header.page == page else "it is the object of another page"


def _size_of(header: ObjectHeader, length: int) -> int:
    return page_size(length) if header.codec & COMPRESSED else length - HEADER_BYTES
