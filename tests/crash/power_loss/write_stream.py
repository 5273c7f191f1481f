"""The stream of changes and syncs that recorder.c writes, read."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final

import msgspec

_HEAD: Final = struct.Struct("<IIQQQ")


class Kind(IntEnum):
    """What happened; the numbers are the recorder's."""

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
    """One of the stream. inode: of the file, or of the folder that was made or synced. offset: where a write begins, or
    a file's new length. data: what was written, the path or both paths with a zero between, or a mark's text."""

    kind: Kind
    thread: int
    inode: int
    offset: int
    data: bytes

    @property
    def path(self) -> Path:
        """Of what was made, synced or removed; what was moved, or one of two that were swapped."""
        return Path(self.data.split(b"\0")[0].decode())

    @property
    def other(self) -> Path:
        """Where it was moved, or the other one."""
        return Path(self.data.split(b"\0")[1].decode())

    @property
    def mark(self) -> str:
        """What the process said of itself there; "" of anything else."""
        return self.data.decode() if self.kind is Kind.MARK else ""


def read_stream(path: Path) -> list[Event]:
    """All of it, in order. Raises ValueError where it makes no sense."""
    return list(_events(path.read_bytes()))


def _events(packed: bytes) -> Iterator[Event]:
    at = 0
    while at < len(packed):
        kind, thread, inode, offset, size = _HEAD.unpack_from(packed, at)
        at += _HEAD.size
        yield Event(Kind(kind), thread, inode, offset, packed[at : at + size])
        at += size
