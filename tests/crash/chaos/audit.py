"""Audits every page that an engine began to store, and judges the journals of a round."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from chaos.scenario import Chain, Scene, chain_of
from oracle.checker import Kind, Losses, Violation, findings, missing
from oracle.journal import Journal, Record, Reported, read_journal, read_journals
from oracle.promises import losses, seen
from oracle.samples import Caps, EndState, Sample
from oracle.witness import Witness
from pagetier.client import Client, Keys

_ATTACH_S: Final = 10.0
_DISK_S: Final = 5.0
_FROM_DISK: Final = 300
_THERE: Final = (Reported.HIT, Reported.REACHED)


class Auditor(msgspec.Struct, frozen=True, kw_only=True):
    """A client that looks up each page that an engine began to store, one by one, in a process of its own.

    No engine runs beside it.
    """

    scene: Scene
    socket: Path
    journals: Path
    journal: Path
    seed: int

    def check_all(self) -> None:
        """Looks up all pages: loads and compares those in memory, records in the journal those that are on disk."""
        self._for_each(_check_page)

    def load_some(self) -> None:
        """Loads and compares some of the pages on disk, which evicts others."""
        self._for_each(_load_page, random.Random(self.seed), _FROM_DISK)

    def _for_each(
        self, check: Callable[[Witness, Keys], None], rng: random.Random | None = None, most: int | None = None
    ) -> None:
        pages = _pages(self.scene, read_journals(self.journals))
        if rng is not None:
            rng.shuffle(pages)
        with Client(self.socket) as client, Journal(self.journal) as journal:
            if not client.wait_attached(_ATTACH_S):
                raise RuntimeError("the auditor cannot attach to the daemon")
            for page in pages[:most]:
                check(Witness(client, journal, self.seed, page.page_bytes), page.keys)


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is known at the end of a round besides the journals of its engines.

    Attributes:
        may_go: The losses that findings() allows.
        before: The journal of the audit before the deaths at rest.
        later: The journals of the audits after each of these deaths.
        went: The number of pages that may have left the cache between these audits.
        pages: The range of the number of pages in the index, in any tier, during the first audit.
        settled: The state after all engines had ended.
        end: The state at the end of the round.
        caps: The limits that the samples are compared with.
        samples: The samples taken during the round.
    """

    may_go: Losses
    before: Path
    later: Sequence[Path]
    went: int
    pages: range
    settled: EndState
    end: EndState
    caps: Caps
    samples: Sequence[Sample]


class Verdict(msgspec.Struct, frozen=True):
    """The result of a round.

    Attributes:
        violations: All broken promises.
        responses: The number of pages by the response that processes got about them.
        missed: The number of stored pages that were not found.
    """

    violations: list[Violation]
    responses: dict[str, int]
    missed: int


def judge(journals: Path, evidence: Evidence) -> Verdict:
    """Returns the verdict on a whole round."""
    records = read_journals(journals)
    found = findings(records, may_go=evidence.may_go, samples=evidence.samples, caps=evidence.caps, end=evidence.end)
    found += findings([], end=evidence.settled)
    before = read_journal(evidence.before)
    for path in evidence.later:
        found += _between(before, read_journal(path), path.stem, evidence.went)
    found += _in_the_index(before, evidence.pages)
    return Verdict(found, _responses(records), len(missing(records, evidence.may_go.since)))


def _between(before: Iterable[Record], after: Iterable[Record], audit: str, went: int) -> Iterable[Violation]:
    """Yields violations if more pages disappeared between two audits than the daemon counted; no store ran then."""
    gone = losses(seen(before), after)
    for loss in gone if len(gone) > went else ():
        what = f"it was found before the deaths at rest, but not in the audit {audit!r}"
        yield Violation(Kind.LOST, f"{what} ({len(gone)} pages are lost, {went} may be)", loss.promise.key)


def _in_the_index(records: Sequence[Record], pages: range) -> Iterable[Violation]:
    """Yields a violation if the number of pages in the index differs from the number found under their keys."""
    found, missed = (
        {key for record in records if record.reported in responses for key in record.each()}
        for responses in (_THERE, {Reported.MISSED})
    )
    if len(found) not in pages:
        indexed = f"{pages[0]} to {pages[-1]}"
        looked_up = f"{len(found)} are found under their keys, {len(missed)} other pages with a begun store are not"
        yield Violation(Kind.FRAMES, f"the index has {indexed} pages, {looked_up}")


def _responses(records: Iterable[Record]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for record in records:
        counts[record.reported] += sum(1 for _ in record.each())
    return dict(counts)


def _pages(scene: Scene, records: Iterable[Record]) -> list[Chain]:
    """Returns all pages that an engine began to store, each as a chain of its own."""
    begun = {key for record in records if record.reported is Reported.STORING for key in record.each()}
    pages = {}
    for chain in map(chain_of, range(scene.prompts)):
        for key in begun.intersection(chain.keys):
            pages[key] = Chain(Keys(chain.keys.namespace, key), chain.page_bytes)
    return list(pages.values())


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
