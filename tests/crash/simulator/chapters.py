"""Splits the journals of a run into chapters. In a long run each is judged when it is over, and then removed.

Only the list of pages whose store had begun is kept. All processes write to the newest chapter, to which a link leads.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from oracle.checker import Violation, findings
from oracle.journal import SUFFIX, Journal, Record, Reported, read_journals

CARRIED: Final = f"carried{SUFFIX}"
_NEWEST: Final = "newest-chapter"


class Verdict(msgspec.Struct, frozen=True):
    """A verdict on journals.

    Attributes:
        violations: The broken promises.
        responses: The number of pages by the response that processes got about them.
        missed: The number of stored pages that were not found.
    """

    violations: list[Violation]
    responses: dict[str, int]
    missed: int = 0


class Chapters:
    """The chapters of a run, each a folder. One process calls turn(); other processes write to the newest chapter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.number = -1
        self.turn()

    def path(self, number: int) -> Path:
        """Returns the folder of a chapter."""
        return self._folder / f"chapter-{number}"

    def newest(self) -> Path:
        """Returns the folder of the newest chapter; any process may call this."""
        return (self._folder / _NEWEST).readlink()

    def turn(self) -> None:
        """Opens the next chapter. Lines that are being written to the last one are there before it is judged."""
        self.number += 1
        self.path(self.number).mkdir()
        link = self._folder / f"{_NEWEST}-{self.number}"
        link.symlink_to(self.path(self.number))
        link.rename(self._folder / _NEWEST)

    def journal(self) -> Journal:
        """Returns a journal for the calling process."""
        return _Chaptered(self)

    def judge(self, number: int) -> Verdict:
        """Judges a chapter that is over, adds the pages whose store had begun to the next one, and removes it.

        To be called in the order of chapters, in a process of its own because it uses much memory.
        """
        records = read_journals(self.path(number))
        found = findings(records, may_go=None)
        carry(records, self.path(number + 1) / CARRIED)
        if not found:
            shutil.rmtree(self.path(number))
        return Verdict(found, responses(records))


class _Chaptered(Journal):
    """A journal that writes to the newest chapter."""

    def __init__(self, chapters: Chapters) -> None:
        self._chapters = chapters
        self._open(chapters.newest())

    def _put(self, line: bytes) -> None:
        """Writes a line, again if a new chapter was opened: a stopped process may miss the end of its chapter."""
        self._turn()
        super()._put(line)
        if self._turn():
            super()._put(line)

    def _turn(self) -> bool:
        """Turns to the newest chapter. Returns whether it is another one."""
        newest = self._chapters.newest()
        is_other = newest != self._chapter
        if is_other:
            self.close()
            self._open(newest)
        return is_other

    def _open(self, chapter: Path) -> None:
        self._chapter = chapter
        super().__init__(chapter / f"{os.getpid()}-{time.monotonic_ns()}{SUFFIX}")


def responses(records: Iterable[Record]) -> dict[str, int]:
    """Returns the number of pages by the response about them, without those carried from an earlier chapter."""
    counts: Counter[str] = Counter()
    for record in records:
        counts[record.reported] += sum(1 for _ in record.each()) if record.pid else 0
    return dict(counts)


def carry(records: Iterable[Record], path: Path) -> None:
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
