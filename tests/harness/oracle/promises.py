"""The promises in journals: pages that were completely stored, since when, and which of them were missed later."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from oracle.journal import Record, Reported

SIGHTS: Final = frozenset({Reported.HIT, Reported.LOADED, Reported.PRESENT, Reported.REACHED})
"""The events that prove that a page is complete."""


class Promise(msgspec.Struct, frozen=True):
    """A page that each match after `kept_from` must find, until it is evicted or dropped.

    Attributes:
        asked: When its first writer sent the reservation. All times are CLOCK_MONOTONIC in ns.
        pid: The last writer that reported it stored.
    """

    key: bytes
    asked: int
    kept_from: int
    pid: int


class Loss(msgspec.Struct, frozen=True):
    """A promised page that was not found. `missed` is the record of the match."""

    promise: Promise
    missed: Record


def promises(records: Iterable[Record]) -> list[Promise]:
    """Returns one promise for each reservation of a page that the writers of all of its parts reported as stored."""
    parts: dict[tuple[bytes, bytes], dict[int, Record]] = defaultdict(dict)
    made = []
    for record in records:
        if record.reported is not Reported.STORED:
            continue
        for key, serial in record.fillings():
            if record.parts == 1:
                made.append(Promise(key, record.since, record.at, record.pid))
            elif serial:
                parts[key, serial][record.part] = record
    whole = ((key, done) for (key, _), done in parts.items() if len(done) == next(iter(done.values())).parts)
    return made + [_of_parts(key, list(done.values())) for key, done in whole]


def seen(records: Iterable[Record]) -> list[Promise]:
    """Returns a promise for each page that was seen: if nothing is ever evicted, it must stay."""
    first: dict[bytes, Promise] = {}
    for record in (record for record in records if record.reported in SIGHTS):
        for key in record.each():
            first.setdefault(key, Promise(key, record.since, record.at, record.pid))
    return list(first.values())


def losses(promised: Iterable[Promise], records: Iterable[Record], since: int = 0) -> list[Loss]:
    """Returns the broken promises, each once. Matches that began before `since` are ignored."""
    kept = list(records)
    missed, dropped = _by_key(kept, Reported.MISSED), _by_key(kept, Reported.DROPPING)
    return list(_losses(promised, missed, dropped, since))


def _losses(
    promised: Iterable[Promise],
    missed: dict[bytes, list[Record]],
    dropped: dict[bytes, list[Record]],
    since: int,
) -> Iterator[Loss]:
    for promise in promised:
        for missed_match in missed.get(promise.key, ()):
            late_enough = missed_match.since > max(promise.kept_from, since)
            if late_enough and not _excused(promise, missed_match, dropped.get(promise.key, [])):
                yield Loss(promise, missed_match)
                break


def _excused(promise: Promise, missed_match: Record, drops: list[Record]) -> bool:
    """Returns whether a flush may have dropped the page between the store and the match."""
    return any(drop.at > promise.asked and drop.since < missed_match.at for drop in drops)


def _by_key(records: Iterable[Record], kind: Reported) -> dict[bytes, list[Record]]:
    found: dict[bytes, list[Record]] = defaultdict(list)
    for record in records:
        if record.reported is kind:
            for key in record.each():
                found[key].append(record)
    return found


def _of_parts(key: bytes, done: list[Record]) -> Promise:
    last = max(done, key=lambda record: record.at)
    return Promise(key, min(record.since for record in done), last.at, last.pid)
