"""A process that looks for everything that anybody spoke of, and the judgement over the journals of a round."""

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
from oracle.journal import Journal, Record, Told, read_journal, read_journals
from oracle.promises import losses, seen
from oracle.samples import Caps, EndState, Sample
from oracle.witness import Witness
from pagetier.client import Client, Keys

_ATTACH_S: Final = 10.0
_DISK_S: Final = 5.0
_FROM_DISK: Final = 300
_THERE: Final = (Told.HIT, Told.REACHED)


class Auditor(msgspec.Struct, frozen=True, kw_only=True):
    """Looks for each page that anybody began to store, one by one: in a process of its own, with nobody beside it."""

    scene: Scene
    socket: Path
    journals: Path
    journal: Path
    seed: int

    def look_at_all(self) -> None:
        """What is in memory is loaded and compared; of what is on disk it is noted that it is there."""
        self._for_each(_note)

    def load_some(self) -> None:
        """Some of what is on disk is loaded and compared; that drives out others."""
        self._for_each(_load, random.Random(self.seed), _FROM_DISK)

    def _for_each(
        self, look: Callable[[Witness, Keys], None], rng: random.Random | None = None, most: int | None = None
    ) -> None:
        pages = _pages(self.scene, read_journals(self.journals))
        if rng is not None:
            rng.shuffle(pages)
        with Client(self.socket) as client, Journal(self.journal) as journal:
            if not client.wait_attached(_ATTACH_S):
                raise RuntimeError("the auditor can not attach")
            for page in pages[:most]:
                look(Witness(client, journal, self.seed, page.page_bytes), page.keys)


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is known at the end besides the journals of engines.

    may_go: as findings() takes it. before, later: what auditors were told before the deaths at rest, and after each.
    went: how many pages can have left since. pages: in the index at that first audit, in whatever tier. settled, end:
    how all was when the engines were gone, and at last.
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
    """All violations; what processes were told, in pages; and how many stored ones were missed."""

    violations: list[Violation]
    told: dict[str, int]
    missed: int


def judge(journals: Path, evidence: Evidence) -> Verdict:
    """Over a whole round."""
    records = read_journals(journals)
    found = findings(records, may_go=evidence.may_go, samples=evidence.samples, caps=evidence.caps, end=evidence.end)
    found += findings([], end=evidence.settled)
    before = read_journal(evidence.before)
    for path in evidence.later:
        found += _between(before, read_journal(path), path.stem, evidence.went)
    found += _in_the_index(before, evidence.pages)
    return Verdict(found, _told(records), len(missing(records, evidence.may_go.since)))


def _between(before: Iterable[Record], after: Iterable[Record], audit: str, went: int) -> Iterable[Violation]:
    """Nobody stored between two audits: what was there is there, but for what the daemon counted."""
    gone = losses(seen(before), after)
    for loss in gone if len(gone) > went else ():
        what = f"it was there before the deaths at rest, and not in the audit {audit!r}"
        yield Violation(Kind.LOST, f"{what} ({len(gone)} are lost, {went} may be)", loss.promise.key)


def _in_the_index(records: Sequence[Record], pages: range) -> Iterable[Violation]:
    """Each page of the index is found under its key."""
    found, missed = (
        {key for record in records if record.told in told for key in record.each()} for told in (_THERE, {Told.MISSED})
    )
    if len(found) not in pages:
        known = f"{pages[0]} to {pages[-1]}"
        told = f"{len(found)} are found under their keys, {len(missed)} others that were begun are not"
        yield Violation(Kind.FRAMES, f"the index has {known} pages, {told}")


def _told(records: Iterable[Record]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for record in records:
        counts[record.told] += sum(1 for _ in record.each())
    return dict(counts)


def _pages(scene: Scene, records: Iterable[Record]) -> list[Chain]:
    """All pages that somebody began to store, each as a chain of its own."""
    begun = {key for record in records if record.told is Told.STORING for key in record.each()}
    pages = {}
    for chain in map(chain_of, range(scene.prompts)):
        for key in begun.intersection(chain.keys):
            pages[key] = Chain(Keys(chain.keys.namespace, key), chain.page_bytes)
    return list(pages.values())


def _note(witness: Witness, keys: Keys) -> None:
    since = time.monotonic_ns()
    with witness.client.match(keys) as match:
        told = Told.HIT if len(match) else Told.REACHED if match.available_pages else Told.MISSED
        witness.journal.write(told, keys.data, since)
        if len(match):
            witness.load(match, keys)


def _load(witness: Witness, keys: Keys) -> None:
    with witness.client.match(keys) as match:
        if match.available_pages > len(match):
            witness.load(match, keys, _DISK_S)
