"""Journals of a long run in chapters: each is judged when it is over, then forgotten but for which pages were begun.

All processes write to the chapter that is open; which it is stands in memory that they share.
"""

from __future__ import annotations

import mmap
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from oracle.checker import Violation, findings
from oracle.journal import SUFFIX, Journal, Record, Told, read_journals

_CARRIED: Final = f"carried{SUFFIX}"


class Verdict(msgspec.Struct, frozen=True):
    """On one chapter: what was broken, and what processes were told, in pages."""

    violations: list[Violation]
    told: dict[str, int]


class Chapters:
    """Folders in one folder. turn() in one process; forked ones write to whichever is open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._memory = mmap.mmap(-1, 8)
        self._open = np.frombuffer(self._memory, dtype=np.int64)
        self.path(0).mkdir()

    @property
    def number(self) -> int:
        """Of the one that is open."""
        return int(self._open[0])

    def path(self, number: int) -> Path:
        """The folder of a chapter."""
        return self._folder / f"chapter-{number}"

    def turn(self) -> None:
        """Opens the next one. What is written to the last one in the next moment is there before it is judged."""
        self.path(self.number + 1).mkdir()
        self._open[0] += 1

    def journal(self) -> Journal:
        """A process's own."""
        return _Chaptered(self)

    def judge(self, number: int, verdict: Path) -> None:
        """What was broken in a chapter that is over. The next one is told which pages were begun, and this one goes.

        To be called in the order of chapters, in a process of its own: it takes much memory.
        """
        records = read_journals(self.path(number))
        told: dict[str, int] = defaultdict(int)
        for record in records:
            told[record.told] += sum(1 for _ in record.each()) if record.pid else 0
        found = findings(records, may_go=None)
        _carry(records, self.path(number + 1) / _CARRIED)
        verdict.with_suffix(".new").write_bytes(msgspec.json.encode(Verdict(found, dict(told))))
        verdict.with_suffix(".new").rename(verdict)
        if not found:
            shutil.rmtree(self.path(number))


class _Chaptered(Journal):
    """Writes to the chapter that is open when it writes."""

    def __init__(self, chapters: Chapters) -> None:
        self._chapters = chapters
        self._turn_to(chapters.number)

    def _descriptor(self) -> int:
        number = self._chapters.number
        if number != self._number:
            self.close()
            self._turn_to(number)
        return self._file

    def _put(self, line: bytes) -> None:
        """Once more where another chapter was opened meanwhile: who stood still may find his own judged without it."""
        super()._put(line)
        if self._chapters.number != self._number:
            super()._put(line)

    def _turn_to(self, number: int) -> None:
        self._number = number
        folder = self._chapters.path(number)
        super().__init__(folder / f"{os.getpid()}-{time.monotonic_ns()}{SUFFIX}")


def _carry(records: Iterable[Record], path: Path) -> None:
    """Which parts of which pages were begun, as if that had been at the beginning of all."""
    begun: dict[tuple[int, int], set[bytes]] = defaultdict(set)
    for record in records:
        if record.told is Told.STORING:
            begun[record.part, record.parts].update(record.each())
    lines = [
        msgspec.json.encode(Record(Told.STORING, b"".join(sorted(keys)), 0, 0, 0, part, parts))
        for (part, parts), keys in begun.items()
    ]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
