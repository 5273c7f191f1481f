"""Reads the stream of changes and syncs that recorder.h writes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final

import msgspec

_HEAD: Final = struct.Struct("<IIQQQ")


class Kind(IntEnum):
    """The kinds of events, with the numbers of the recorder."""

    WRITE = 1
    LENGTH = 2
    SYNCING = 3
    SYNCED = 4
    MADE = 5
    MOVED = 6
    SWAPPED = 7
    GONE = 8
    FOLDER = 9
    NO_FOLDER = 10
    MARK = 11


class Event(msgspec.Struct, frozen=True):
    """An event of the stream.

    Attributes:
        kind: The kind of the event.
        thread: The thread that caused it.
        inode: The inode of the file, or of the folder that was made or synced.
        offset: The begin of a write, or a file's new length.
        data: The written bytes, the path, both paths with a zero between, or the text of a mark.
    """

    kind: Kind
    thread: int
    inode: int
    offset: int
    data: bytes

    @property
    def path(self) -> Path:
        """The path that was made, synced or removed; the source of a move, or one of two paths that were swapped."""
        return Path(self.data.split(b"\0")[0].decode())

    @property
    def other(self) -> Path:
        """The target of a move, or the other one of two paths that were swapped."""
        return Path(self.data.split(b"\0")[1].decode())

    @property
    def mark(self) -> str:
        """The mark that the process wrote; "" for all other events."""
        return self.data.decode() if self.kind is Kind.MARK else ""


def read_stream(path: Path) -> list[Event]:
    """Returns all events of a stream, in order. Raises ValueError for an invalid stream."""
    return list(_events(path.read_bytes()))


def _events(packed: bytes) -> Iterator[Event]:
    at = 0
    while at < len(packed):
        kind, thread, inode, offset, size = _HEAD.unpack_from(packed, at)
        at += _HEAD.size
        yield Event(Kind(kind), thread, inode, offset, packed[at : at + size])
        at += size
