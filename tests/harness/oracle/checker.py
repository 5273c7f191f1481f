"""Judges a run by the journals of all processes, samples of the memory used, and the final state of the cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from oracle.journal import Record, Reported
from oracle.promises import SIGHTS, Loss, Promise, losses, promises, seen
from oracle.samples import Caps, EndState, Sample

WORKER_NAME: Final = "disk tier"
FLEET_NAME: Final = "fleet"
WORKER_NAMES: Final = (WORKER_NAME, FLEET_NAME)
"""The names of the workers' attachments, which stay when all engines are gone."""


class Kind(StrEnum):
    """The kinds of violations."""

    BYTES = "a page has wrong content"
    NOWHERE = "a match found a page that was never stored"
    LOST = "a stored page was not found"
    CAP = "more memory or disk was used than allowed"
    INTEGRITY = "check_integrity() reported a problem"
    FRAMES = "frames are not accounted for"
    OPEN = "a reservation never ends"
    PINS = "a pin was left"
    SLOT = "a process that ended still has a slot"
    LEFTOVER = "shared memory was left"
    CRASH = "a process ended unexpectedly"
    HANG = "a process hangs"
    LATE = "memory of dead processes was not reused in time"
    REFUSED = "a store that fits was rejected"
    STARVED = "an engine got less than its share"
    GREW = "a series grew beyond its limit"
    SLOWER = "calls became slower"


class Violation(msgspec.Struct, frozen=True):
    """One violation. `key` is the page, if it concerns one; `pid` is the process that detected it."""

    kind: Kind
    what: str
    key: bytes = b""
    pid: int = 0

    def __str__(self) -> str:
        page = f" page {self.key.hex()[:16]}" if self.key else ""
        seen_by = f", seen by process {self.pid}" if self.pid else ""
        return f"{self.kind}:{page} {self.what}{seen_by}"


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of stored pages that may be missing: those that the daemon counted as evicted.

    Matches that began before `since` (CLOCK_MONOTONIC in ns) are ignored, for example those while a disk was
    unavailable.
    """

    at_most: int = 0
    since: int = 0


NOTHING_MAY_GO: Final = Losses()


def findings(
    records: Sequence[Record],
    *,
    may_go: Losses | None = NOTHING_MAY_GO,
    samples: Iterable[Sample] = (),
    caps: Caps | None = None,
    end: EndState | None = None,
    staying: Collection[int] = (),
) -> list[Violation]:
    """Returns all violations that the arguments prove.

    Args:
        records: The records of all processes, sorted by time, from read_journals().
        may_go: None if the number of evicted pages is unknown.
        samples: The memory and disk used.
        caps: The memory and disk allowed.
        end: The final state of the cache, if it was read.
        staying: PIDs of engines that are attached at the end; they may not have pins either.
    """
    found = [*_bytes(records), *_from_nowhere(records)]
    if may_go is not None:
        found += _lost(records, may_go)
    if caps is not None:
        found += [violation for sample in samples for violation in _over(sample, caps)]
    if end is not None:
        found += [*_at_rest(end), *_let_go(end, staying)]
    return found


def _bytes(records: Iterable[Record]) -> Iterator[Violation]:
    for record in records:
        if record.reported is Reported.WRONG:
            for key in record.each():
                yield Violation(Kind.BYTES, record.note, key, record.pid)


def _from_nowhere(records: Iterable[Record]) -> Iterator[Violation]:
    """Yields pages that were readable although the writing of a part had not begun."""
    begun: dict[bytes, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for record in records:
        for key in record.each():
            if record.reported is Reported.STORING:
                begun[key][record.parts].add(record.part)
            elif record.reported in SIGHTS and not any(len(done) == count for count, done in begun[key].items()):
                yield Violation(Kind.NOWHERE, f"begun was {_as_text(begun[key])}", key, record.pid)


def _as_text(begun: dict[int, set[int]]) -> str:
    return ", ".join(f"part {sorted(done)} of {count}" for count, done in begun.items()) or "nothing"


def _lost(records: Sequence[Record], may_go: Losses) -> list[Violation]:
    gone = missing(records, may_go.since, promises(records) + (seen(records) if may_go.at_most == 0 else []))
    if len(gone) <= may_go.at_most:
        return []
    one_a_page = {loss.promise.key: loss for loss in gone}.values()
    return [_loss(loss, len(gone), may_go.at_most) for loss in one_a_page]


def missing(records: Sequence[Record], since: int = 0, promised: Iterable[Promise] | None = None) -> list[Loss]:
    """Returns pages that were stored, or are in `promised`, and were missed later; once for each match.

    A page that was stored while its disk was unavailable, and is also on that disk, is promised twice and evicted once.
    """
    gone = losses(promises(records) if promised is None else promised, records, since)
    return list({(loss.promise.key, loss.missed.since, loss.missed.pid): loss for loss in gone}.values())


def _loss(loss: Loss, gone: int, at_most: int) -> Violation:
    after = (loss.missed.since - loss.promise.kept_from) / 1e6
    what = f"stored by process {loss.promise.pid}, missed {after:.3f} ms later ({gone} are lost, {at_most} may be)"
    return Violation(Kind.LOST, what, loss.promise.key, loss.missed.pid)


def _over(sample: Sample, caps: Caps) -> Iterator[Violation]:
    for what in ("arena", "shm", "disk"):
        taken, cap = getattr(sample, what), getattr(caps, what)
        if cap is not None and taken > cap:
            yield Violation(Kind.CAP, f"{what}: {taken} bytes of {cap} at {sample.at}")


def _at_rest(end: EndState) -> Iterator[Violation]:
    for sentence in end.integrity:
        yield Violation(Kind.INTEGRITY, sentence)
    if end.used_frames + end.free_frames != end.frames:
        yield Violation(Kind.FRAMES, f"{end.used_frames} used and {end.free_frames} free are not {end.frames}")
    if end.open_entries:
        yield Violation(Kind.OPEN, f"{end.open_entries} pages")
    for name in end.leftovers:
        yield Violation(Kind.LEFTOVER, name)


def _let_go(end: EndState, staying: Collection[int]) -> Iterator[Violation]:
    for who in end.attached:
        if who.pid not in staying and who.name not in WORKER_NAMES:
            yield Violation(Kind.SLOT, who.name, pid=who.pid)
        if who.pins:
            yield Violation(Kind.PINS, f"{who.pins} of {who.name}", pid=who.pid)
