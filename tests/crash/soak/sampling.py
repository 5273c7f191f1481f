"""Reads measurements of processes, files and the index, about once a second."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

_RSS_ANON: Final = re.compile(rb"^RssAnon:\s+(\d+) kB", re.MULTILINE)
_LOCK_FILE: Final = "lock.mdb"
_READERS_FROM, _READER_BYTES, _READERS_AT = 128, 64, 56  # as in LMDB 0.9 on 64 bits; a test verifies it


class Vitals(msgspec.Struct, frozen=True):
    """Measurements of a running process: its private memory in bytes (RssAnon), and its open descriptors."""

    pid: int
    rss: int
    descriptors: int


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements at a moment.

    Attributes:
        at: Seconds since the measurement began.
        daemon: The daemon's process; None if there is none.
        worker: The disk worker's process; None if there is none.
        readers: Slots of LMDB's reader tables in use.
        disk: Bytes of the disk tier's files; `shm` those of the shared memory.
    """

    at: float
    daemon: Vitals | None
    worker: Vitals | None
    probe: Vitals | None
    readers: int
    disk: int
    shm: int
    used_frames: int
    pages: int
    slots: int
    open_entries: int


def vitals(pid: int) -> Vitals | None:
    """Returns the measurements of a process; None if it has ended or may not be read."""
    try:
        found = _RSS_ANON.search(Path(f"/proc/{pid}/status").read_bytes())
        descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return None
    return Vitals(pid, 1024 * int(found[1]), descriptors) if found else None


def readers(disk: Path) -> int:
    """Returns the number of slots of LMDB's reader tables in use, in all environments below the folder."""
    return sum(len(list(_holders(path))) for path in disk.rglob(_LOCK_FILE))


def _holders(path: Path) -> Iterator[int]:
    """Yields the pids in a lock file; none if it disappears."""
    try:
        table = path.read_bytes()
    except FileNotFoundError:
        return
    if len(table) < _READERS_FROM:
        return
    (used,) = struct.unpack_from("<I", table, _READERS_AT)
    for at in range(_READERS_FROM, min(_READERS_FROM + used * _READER_BYTES, len(table)), _READER_BYTES):
        (pid,) = struct.unpack_from("<I", table, at + 8)
        if pid:
            yield pid
