"""Audits every page that an engine began to store, and compares audits."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from oracle.checker import Kind, Violation
from oracle.journal import SUFFIX, Journal, Record, Reported, read_journal, read_journals
from oracle.promises import losses, seen
from oracle.witness import Witness
from pagetier.client import Client, Keys
from simulator.scenes import Chain, Scene, chain_of

_ATTACH_S: Final = 10.0
_DISK_S: Final = 5.0
_FROM_DISK: Final = 300
_THERE: Final = (Reported.HIT, Reported.REACHED)


class Auditor(msgspec.Struct, frozen=True, kw_only=True):
    """A client that looks up each page that an engine began to store, one by one, in a process of its own.

    No engine runs beside it. Its journal is one of those that it reads.
    """

    scene: Scene
    socket: Path
    journals: Path
    seed: int

    def journal(self, name: str) -> list[Record]:
        """Returns what the audit of this name recorded."""
        return read_journal(self.journals / f"{name}{SUFFIX}")

    def check_all(self, name: str) -> None:
        """Looks up all pages: loads and compares those in memory, records in the journal those that are on disk."""
        self._for_each(_check_page, name, self._pages())

    def load_some(self, name: str) -> None:
        """Loads and compares some of the pages on disk, which evicts others."""
        pages = self._pages()
        random.Random(self.seed).shuffle(pages)
        self._for_each(_load_page, name, pages[:_FROM_DISK])

    def _pages(self) -> list[Chain]:
        """Returns all pages that an engine began to store, each as a chain of its own."""
        records = read_journals(self.journals)
        begun = {key for record in records if record.reported is Reported.STORING for key in record.each()}
        pages = {}
        for chain in map(chain_of, range(self.scene.prompts)):
            for key in begun.intersection(chain.keys):
                pages[key] = Chain(Keys(chain.keys.namespace, key), chain.page_bytes)
            if len(pages) == len(begun):
                break
        return list(pages.values())

    def _for_each(self, check: Callable[[Witness, Keys], None], name: str, pages: Iterable[Chain]) -> None:
        with Client(self.socket) as client, Journal(self.journals / f"{name}{SUFFIX}") as journal:
            if not client.wait_attached(_ATTACH_S):
                raise RuntimeError("the auditor cannot attach to the daemon")
            for page in pages:
                check(Witness(client, journal, self.seed, page.page_bytes), page.keys)


def lost_between(before: Iterable[Record], after: Iterable[Record], audit: str, went: int) -> Iterator[Violation]:
    """Yields violations if more pages disappeared between two audits than the daemon counted; no store ran then."""
    gone = losses(seen(before), after)
    for loss in gone if len(gone) > went else ():
        what = f"it was found before the deaths at rest, but not in the audit {audit!r}"
        yield Violation(Kind.LOST, f"{what} ({len(gone)} pages are lost, {went} may be)", loss.promise.key)


def not_in_the_index(records: Sequence[Record], pages: range) -> Iterator[Violation]:
    """Yields a violation if the number of pages in the index differs from the number found under their keys."""
    found, missed = (
        {key for record in records if record.reported in reports for key in record.each()}
        for reports in (_THERE, {Reported.MISSED})
    )
    if len(found) not in pages:
        indexed = f"{pages[0]} to {pages[-1]}"
        looked_up = f"{len(found)} are found under their keys, {len(missed)} other pages with a begun store are not"
        yield Violation(Kind.FRAMES, f"the index has {indexed} pages, {looked_up}")


def _check_page(witness: Witness, keys: Keys) -> None:
    since = time.monotonic_ns()
    with witness.client.match(keys) as match:
        reported = Reported.HIT if len(match) else Reported.REACHED if match.available_pages else Reported.MISSED
        witness.journal.write(reported, keys.data, since)
        if len(match):
            witness.load(match, keys)


def _load_page(witness: Witness, keys: Keys) -> None:
    with witness.client.match(keys) as match:
        if match.available_pages > len(match):
            witness.load(match, keys, _DISK_S)
