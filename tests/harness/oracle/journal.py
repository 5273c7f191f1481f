"""What one process was told, written down so that it outlives the process: a file, appended to by one write a line."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

KEY_BYTES: Final = 32
SERIAL_BYTES: Final = 8
SUFFIX: Final = ".journal"


class Told(StrEnum):
    """What happened to pages, as their process saw it.

    STORING is written before the client is asked, STORED after it said so: a death between the two is no promise. HIT:
    a match has pinned it. MISSED: an attached process did not find it, in memory or on disk; of a chain only the first
    such page, as nobody looked for those behind it. REACHED: on disk, says a match. LOADED: copied out, and every byte
    was what belongs there; WRONG: one was not, or a pinned page could not be copied. DROPPING: it is told to go;
    written before somebody is asked for that and, where that is survived, after, with the same `since`.
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
    """One line: pages to which the same was told at once. keys: 32 bytes each, end to end.

    since, at: CLOCK_MONOTONIC in ns, when the process asked and when it wrote this down. part, parts: which share of
    its pages the process fills; serials: of which filling, 8 bytes a key, where that is known: parts make a page only
    if they are of one filling. note: what else a person should know, such as what was wrong.
    """

    told: Told
    keys: bytes
    since: int
    at: int
    pid: int
    part: int = 0
    parts: int = 1
    serials: bytes = b""
    note: str = ""

    def each(self) -> Iterator[bytes]:
        """The keys, one by one."""
        return (self.keys[first : first + KEY_BYTES] for first in range(0, len(self.keys), KEY_BYTES))

    def fillings(self) -> Iterator[tuple[bytes, bytes]]:
        """Each key with its serial, b"" where that is not known."""
        width = SERIAL_BYTES if self.serials else 0
        return ((key, self.serials[width * at : width * (at + 1)]) for at, key in enumerate(self.each()))


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


class Journal:
    """One process's own; opened after a fork, as a file that is shared would mix what two processes say.

    What write() has written is there whatever becomes of the process. Raises OSError where it can not be written.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._pid = os.getpid()

    @classmethod
    def of_this_process(cls, folder: Path) -> Self:
        """A new one in a folder, whose name says the process."""
        return cls(folder / f"{os.getpid()}-{time.monotonic_ns()}{SUFFIX}")

    def write(
        self,
        told: Told,
        keys: bytes | Sequence[bytes],
        since: int | None = None,
        *,
        part: int = 0,
        parts: int = 1,
        serials: bytes = b"",
        note: str = "",
    ) -> None:
        """Notes that these pages were told so; nothing if there are none. since: now, where nobody was asked."""
        packed = keys if isinstance(keys, bytes) else b"".join(keys)
        if not packed:
            return
        at = time.monotonic_ns()
        record = Record(told, packed, at if since is None else since, at, self._pid, part, parts, serials, note)
        self._put(_encode(record) + b"\n")

    def close(self) -> None:
        """The end of it; may be called again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _put(self, line: bytes) -> None:
        """By one write."""
        os.write(self._descriptor(), line)

    def _descriptor(self) -> int:
        """Of the file that the next line goes to."""
        return self._file

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_journal(path: Path) -> list[Record]:
    """All records of one process, but for a last one that its death has torn. Raises ValueError for other nonsense."""
    *lines, _torn = path.read_bytes().split(b"\n")
    return [_decode(line) for line in lines]


def read_journals(folder: Path) -> list[Record]:
    """All records of all processes with a journal in the folder, in order of time."""
    records = [record for path in folder.glob(f"*{SUFFIX}") for record in read_journal(path)]
    return sorted(records, key=lambda record: record.at)
