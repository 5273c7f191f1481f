"""What journals promise: pages that were reported stored, whole, from when on; and which of them were missed later."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from oracle.journal import Record, Told

SIGHTS: Final = frozenset({Told.HIT, Told.LOADED, Told.PRESENT, Told.REACHED})
"""Who is told so has met a page that is whole."""


class Promise(msgspec.Struct, frozen=True):
    """A page that is to be found by every match that begins after `kept_from`, until it is evicted or dropped.

    asked: when the first who wrote it asked for room, both CLOCK_MONOTONIC in ns. pid: who said so last.
    """

    key: bytes
    asked: int
    kept_from: int
    pid: int


class Loss(msgspec.Struct, frozen=True):
    """A promised page that was not found. missed: by whom and when."""

    promise: Promise
    missed: Record


def promises(records: Iterable[Record]) -> list[Promise]:
    """One for each filling of a page that was reported stored by the writers of all of its parts."""
    parts: dict[tuple[bytes, bytes], dict[int, Record]] = defaultdict(dict)
    made = []
    for record in records:
        if record.told is not Told.STORED:
            continue
        for key, serial in record.fillings():
            if record.parts == 1:
                made.append(Promise(key, record.since, record.at, record.pid))
            elif serial:
                parts[key, serial][record.part] = record
    whole = ((key, done) for (key, _), done in parts.items() if len(done) == next(iter(done.values())).parts)
    return made + [_of_parts(key, list(done.values())) for key, done in whole]


def seen(records: Iterable[Record]) -> list[Promise]:
    """Pages that were there: where nothing is ever evicted, that is as good as a promise."""
    first: dict[bytes, Promise] = {}
    for record in (record for record in records if record.told in SIGHTS):
        for key in record.each():
            first.setdefault(key, Promise(key, record.since, record.at, record.pid))
    return list(first.values())


def losses(promised: Iterable[Promise], records: Iterable[Record], since: int = 0) -> list[Loss]:
    """Promises that were not kept, each once; looks that began before `since` claim nothing."""
    kept = list(records)
    missed, dropped = _by_key(kept, Told.MISSED), _by_key(kept, Told.DROPPING)
    return list(_losses(promised, missed, dropped, since))


def _losses(
    promised: Iterable[Promise],
    missed: dict[bytes, list[Record]],
    dropped: dict[bytes, list[Record]],
    since: int,
) -> Iterator[Loss]:
    for promise in promised:
        for look in missed.get(promise.key, ()):
            late_enough = look.since > max(promise.kept_from, since)
            if late_enough and not _excused(promise, look, dropped.get(promise.key, [])):
                yield Loss(promise, look)
                break


def _excused(promise: Promise, look: Record, drops: list[Record]) -> bool:
    """Whether somebody may have told the page to go between its storing and the look."""
    return any(drop.at > promise.asked and drop.since < look.at for drop in drops)


def _by_key(records: Iterable[Record], told: Told) -> dict[bytes, list[Record]]:
    found: dict[bytes, list[Record]] = defaultdict(list)
    for record in records:
        if record.told is told:
            for key in record.each():
                found[key].append(record)
    return found


def _of_parts(key: bytes, done: list[Record]) -> Promise:
    last = max(done, key=lambda record: record.at)
    return Promise(key, min(record.since for record in done), last.at, last.pid)
