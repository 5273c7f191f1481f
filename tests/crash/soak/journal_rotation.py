"""Splits the journals of a long run into chapters, each judged when it is over and then removed.

Only the list of pages whose store had begun is kept. All processes write to the current chapter, whose number is in
shared memory.
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
from oracle.journal import SUFFIX, Journal, Record, Reported, read_journals

_CARRIED: Final = f"carried{SUFFIX}"


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on one chapter: the broken promises, and the number of pages by the response about them."""

    violations: list[Violation]
    responses: dict[str, int]


class Chapters:
    """The chapters of a run, each a folder. One process calls turn(); forked processes write to the current chapter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._memory = mmap.mmap(-1, 8)
        self._open = np.frombuffer(self._memory, dtype=np.int64)
        self.path(0).mkdir()

    @property
    def number(self) -> int:
        """The number of the current chapter."""
        return int(self._open[0])

    def path(self, number: int) -> Path:
        """Returns the folder of a chapter."""
        return self._folder / f"chapter-{number}"

    def turn(self) -> None:
        """Opens the next chapter. Lines that are being written to the last one are there before it is judged."""
        self.path(self.number + 1).mkdir()
        self._open[0] += 1

    def journal(self) -> Journal:
        """Returns a journal for the calling process."""
        return _Chaptered(self)

    def judge(self, number: int, verdict: Path) -> None:
        """Judges a chapter that is over, adds the pages whose store had begun to the next one, and removes it.

        To be called in the order of chapters, in a process of its own because it uses much memory. The verdict is
        written to the file `verdict`.
        """
        records = read_journals(self.path(number))
        responses: dict[str, int] = defaultdict(int)
        for record in records:
            responses[record.reported] += sum(1 for _ in record.each()) if record.pid else 0
        found = findings(records, may_go=None)
        _carry(records, self.path(number + 1) / _CARRIED)
        verdict.with_suffix(".new").write_bytes(msgspec.json.encode(Verdict(found, dict(responses))))
        verdict.with_suffix(".new").rename(verdict)
        if not found:
            shutil.rmtree(self.path(number))


class _Chaptered(Journal):
    """A journal that writes to the current chapter."""

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
        """Writes a line, again if a new chapter was opened: a stopped process may miss the end of its chapter."""
        super()._put(line)
        if self._chapters.number != self._number:
            super()._put(line)

    def _turn_to(self, number: int) -> None:
        self._number = number
        folder = self._chapters.path(number)
        super().__init__(folder / f"{os.getpid()}-{time.monotonic_ns()}{SUFFIX}")


def _carry(records: Iterable[Record], path: Path) -> None:
    """Writes which parts of which pages had begun, as if at the beginning of the run."""
    begun: dict[tuple[int, int], set[bytes]] = defaultdict(set)
    for record in records:
        if record.reported is Reported.STORING:
            begun[record.part, record.parts].update(record.each())
    lines = [
        msgspec.json.encode(Record(Reported.STORING, b"".join(sorted(keys)), 0, 0, 0, part, parts))
        for (part, parts), keys in begun.items()
    ]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
