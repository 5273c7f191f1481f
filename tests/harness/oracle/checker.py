"""Judges a run: journals of all processes, samples of what was taken, and how the cache was left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from oracle.journal import Record, Told
from oracle.promises import SIGHTS, Loss, Promise, losses, promises, seen
from oracle.samples import Caps, EndState, Sample

WORKER_NAME: Final = "disk tier"


class Kind(StrEnum):
    """What kinds of promise can be broken."""

    BYTES = "other bytes than were stored"
    NOWHERE = "a hit of a page that nobody stored"
    LOST = "a stored page was not found"
    CAP = "more was taken than the cap"
    INTEGRITY = "check_integrity() found something"
    FRAMES = "frames are not accounted for"
    OPEN = "a page is being written for ever"
    PINS = "a pin was left"
    SLOT = "who is gone still has a slot"
    LEFTOVER = "shared memory was left"
    CRASH = "a process ended that nobody ended"
    HANG = "a process does not get on"
    LATE = "memory of the dead was not in use again in time"


class Violation(msgspec.Struct, frozen=True):
    """One broken promise. key: the page, where it is about one; pid: the process that saw it."""

    kind: Kind
    what: str
    key: bytes = b""
    pid: int = 0

    def __str__(self) -> str:
        page = f" page {self.key.hex()[:16]}" if self.key else ""
        seen_by = f", seen by process {self.pid}" if self.pid else ""
        return f"{self.kind}:{page} {self.what}{seen_by}"


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """How many stored pages may be missed: what the daemon's own counters say has left, 0 where all have room.

    since: CLOCK_MONOTONIC in ns; looks that began before it claim nothing, such as those while a disk was away.
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
    """All broken promises that can be seen in what is given.

    Args:
        records: of all processes, in order of time, as read_journals() gives them.
        may_go: None where nobody can say how many pages have left.
        samples, caps: what was taken, and what may be.
        end: the cache at rest, if it was looked at.
        staying: pids of engines that live and are attached at the end; they may hold no pins either.
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
        if record.told is Told.WRONG:
            for key in record.each():
                yield Violation(Kind.BYTES, record.note, key, record.pid)


def _from_nowhere(records: Iterable[Record]) -> Iterator[Violation]:
    """A page is readable once all its parts are written: so somebody has begun with each of them."""
    begun: dict[bytes, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for record in records:
        for key in record.each():
            if record.told is Told.STORING:
                begun[key][record.parts].add(record.part)
            elif record.told in SIGHTS and not any(len(done) == count for count, done in begun[key].items()):
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
    """Pages that were stored, or promised otherwise, and were missed later; those of one look once.

    A page that was stored while its disk was away, and is on that disk as well, was promised twice and leaves once.
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
        if who.pid not in staying and who.name != WORKER_NAME:
            yield Violation(Kind.SLOT, who.name, pid=who.pid)
        if who.pins:
            yield Violation(Kind.PINS, f"{who.pins} of {who.name}", pid=who.pid)
