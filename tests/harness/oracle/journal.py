"""The record of all results that a process received, in a file with one write() per line, which survives it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

import msgspec

from pagetier.shm._core import KEY_BYTES

SERIAL_BYTES: Final = 8
SUFFIX: Final = ".journal"


class Reported(StrEnum):
    """The events of pages, as their process observed them.

    STORING is written before the client is called, STORED after it reported success: if the process dies in between,
    nothing is promised. HIT: a match pinned the page. MISSED: an attached process did not find it, in memory or on
    disk; only the first such page of a chain. REACHED: a match reported it on disk. LOADED: copied, with the right
    content. WRONG: copied with wrong content, or pinned but not copied. DROPPING: a flush of the page; written before
    the request and, if the process survives, again after it, with the same `since`.
    """

    STORING = "storing"
    STORED = "stored"
    PRESENT = "present"
    PENDING = "pending"
    REFUSED = "refused"
    HIT = "hit"
    REACHED = "reached"
    MISSED = "missed"
    LOADED = "loaded"
    WRONG = "wrong"
    DROPPING = "dropping"


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: pages with the same event at the same time.

    Attributes:
        keys: 32 bytes each, concatenated.
        since: CLOCK_MONOTONIC in ns when the process sent the request.
        at: CLOCK_MONOTONIC in ns when the line was written.
        part: The part of its pages that the process fills.
        parts: The number of parts of a page.
        serials: 8 bytes for each key, the serial of the reservation, if known: only parts with one serial form a page.
        note: Details for people, such as the wrong content.
    """

    reported: Reported
    keys: bytes
    since: int
    at: int
    pid: int
    part: int = 0
    parts: int = 1
    serials: bytes = b""
    note: str = ""

    def each(self) -> Iterator[bytes]:
        """Yields the keys."""
        return (self.keys[first : first + KEY_BYTES] for first in range(0, len(self.keys), KEY_BYTES))

    def fillings(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields each key with its serial, b"" if that is unknown."""
        width = SERIAL_BYTES if self.serials else 0
        return ((key, self.serials[width * at : width * (at + 1)]) for at, key in enumerate(self.each()))


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


class Journal:
    """The journal of one process.

    It is opened after a fork, because a shared file would mix the lines of two processes.

    A line that write() has written survives the process. Raises OSError if it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._pid = os.getpid()

    @classmethod
    def of_this_process(cls, folder: Path) -> Self:
        """Opens a new journal in a folder. Its name contains the PID."""
        return cls(folder / f"{os.getpid()}-{time.monotonic_ns()}{SUFFIX}")

    def write(
        self,
        kind: Reported,
        keys: bytes | Sequence[bytes],
        since: int | None = None,
        *,
        part: int = 0,
        parts: int = 1,
        serials: bytes = b"",
        note: str = "",
    ) -> None:
        """Records an event of these pages; nothing if there are none. `since` is now, if there was no request."""
        packed = keys if isinstance(keys, bytes) else b"".join(keys)
        if not packed:
            return
        at = time.monotonic_ns()
        record = Record(kind, packed, at if since is None else since, at, self._pid, part, parts, serials, note)
        self._put(_encode(record) + b"\n")

    def close(self) -> None:
        """Closes the journal; it may be called again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _put(self, line: bytes) -> None:
        """Writes a line with one call of write()."""
        os.write(self._file, line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_journal(path: Path) -> list[Record]:
    """Returns all records of one process, except for a torn last line. Raises ValueError for any other invalid line."""
    *lines, _torn = path.read_bytes().split(b"\n")
    return [_decode(line) for line in lines]


def read_journals(folder: Path) -> list[Record]:
    """Returns all records of the journals in the folder, sorted by time."""
    records = [record for path in folder.glob(f"*{SUFFIX}") for record in read_journal(path)]
    return sorted(records, key=lambda record: record.at)
