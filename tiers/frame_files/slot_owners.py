"""Derives from the records which write owns each slot, when an environment is opened."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.tiers.base import StoredPages
from pagetier.tiers.disk import reader
from pagetier.tiers.disk.environment import Environment
from pagetier.tiers.disk.file_format import HEADER_BYTES
from pagetier.tiers.frame_files.records import CHECK_BYTES, checks_of

_SERIAL: Final = HEADER_BYTES // 8 - 2  # the word of a record
_SIZE: Final = 1
_CODED: Final = _SERIAL + 1  # the word that a compressed page has in place of its size
_Words: TypeAlias = npt.NDArray[np.uint64]
_Numbers: TypeAlias = npt.NDArray[np.int64]


class SlotOwners(msgspec.Struct, frozen=True):
    """What the records say: the owners of the slots, the pages, and the keys of records that must be dropped.

    Of two records that name one slot, the older one must: it is a leaf of LMDB that the disk returned as it was before.
    `beyond` of the dropped ones are valid, and name slots that the files do not have.
    """

    owners: _Words
    wrong: list[bytes]
    next_serial: int
    beyond: int
    pages: list[StoredPages]


class _Rows(msgspec.Struct, frozen=True):
    """Valid records: their serials, and how many slots and extents each has; the extents of all of them in order.

    `beyond` others name slots that the files do not have.
    """

    serials: _Words
    counts: _Numbers
    extents: _Numbers
    first: _Numbers
    frames: _Numbers
    beyond: int


def find_owners(environment: Environment, slots: int) -> SlotOwners:
    """Returns what all records say; those of slots beyond `slots` are wrong. Raises lmdb.Error."""
    wrong: list[bytes] = []
    pages: list[StoredPages] = []
    found: list[_Rows] = []
    for records in reader.all_records(environment):
        pages.append(reader.stored_pages(environment, records))
        found.append(_valid(records, environment.shape.frame_bytes, slots, wrong))
    rows = _joined(found)
    owners = _owners_of(rows, slots)
    if owners is None:
        owners, losers = _disputed(rows, slots)
        wrong += _keys_of(environment, losers)
    return SlotOwners(owners, wrong, int(rows.serials.max(initial=0)) + 1, rows.beyond, pages)


def _joined(found: Sequence[_Rows]) -> _Rows:
    if not found:
        none = np.zeros(0, np.int64)
        return _Rows(none.view(np.uint64), none, none, none, none, 0)
    columns = ("serials", "counts", "extents", "first", "frames")
    joined = {name: np.concatenate([getattr(rows, name) for rows in found]) for name in columns}
    return _Rows(**joined, beyond=sum(rows.beyond for rows in found))


def _valid(records: reader.Records, frame_bytes: int, slots: int, wrong: list[bytes]) -> _Rows:
    """Returns the valid records, and adds the keys of the others to `wrong`. It works on columns of a whole batch."""
    possible = (records.lengths % 8 == 0) & (records.lengths > HEADER_BYTES + CHECK_BYTES)
    if not possible.all():
        wrong += compress(records.keys, (~possible).tolist())
        records = records.only(possible)
    words = np.frombuffer(b"".join(records.values), "<u8")
    ends = np.cumsum(records.lengths) // 8
    begins = ends - records.lengths // 8
    checks = np.frombuffer(checks_of(records.keys, records.values), "<u8")
    first, frames, extents = _extents(words, begins, ends)
    counts = np.add.reduceat(frames, np.cumsum(extents) - extents) if len(ends) else frames
    ends_at = np.maximum.reduceat(first + frames, np.cumsum(extents) - extents) if len(ends) else frames
    coded = words[begins + _CODED]
    stored = np.where(coded > 0, coded, words[begins + _SIZE])
    expected = -(-stored.astype(np.int64) // frame_bytes)
    whole = (words[ends - 1] == checks) & (counts == expected)
    good = whole & (ends_at <= slots)
    if not good.all():
        wrong += compress(records.keys, (~good).tolist())
    of_extent = np.repeat(good, extents)
    beyond = int(np.count_nonzero(whole & ~good))
    serials = words[begins + _SERIAL][good]
    return _Rows(serials, counts[good], extents[good], first[of_extent], frames[of_extent], beyond)


def _extents(words: _Words, begins: _Numbers, ends: _Numbers) -> tuple[_Numbers, _Numbers, _Numbers]:
    """Returns the first slots and the lengths of all extents, and how many extents each record has."""
    is_extent = np.ones(len(words), np.bool_)
    for word in range(HEADER_BYTES // 8):
        is_extent[begins + word] = False
    is_extent[ends - 1] = False
    extents = words[is_extent].view("<u4").astype(np.int64)
    return extents[::2], extents[1::2], ends - begins - (HEADER_BYTES + CHECK_BYTES) // 8


def _spread(first: _Numbers, frames: _Numbers) -> _Numbers:
    """Returns the slots of all extents, one after the other."""
    ends = np.cumsum(frames)
    slots: _Numbers = np.arange(int(frames.sum())) + np.repeat(first - (ends - frames), frames)
    return slots


def _owners_of(rows: _Rows, slots: int) -> _Words | None:
    """Returns the serial of each slot's record, 0 for free slots; None if two records name one slot."""
    order = np.argsort(rows.first, kind="stable")
    first, frames = rows.first[order], rows.frames[order]
    ends = np.concatenate((np.zeros(1, np.int64), first + frames))
    gaps = first - ends[:-1]
    if (gaps < 0).any():
        return None
    # A free gap, an extent, a free gap and so on: what is found of extents need not be computed for each slot.
    lengths, serials = np.zeros(2 * len(first) + 1, np.int64), np.zeros(2 * len(first) + 1, np.uint64)
    lengths[:-1:2], lengths[1::2], lengths[-1] = gaps, frames, slots - ends[-1]
    serials[1::2] = np.repeat(rows.serials, rows.extents)[order]
    owners: _Words = np.repeat(serials, lengths)
    return owners


def _disputed(rows: _Rows, slots: int) -> tuple[_Words, set[int]]:
    """Gives each slot to the newest record that names it. Returns the owners, and the serials of the other records."""
    owners, losers, end = np.zeros(slots, np.uint64), set[int](), 0
    spread = _spread(rows.first, rows.frames)
    for serial, count in zip(rows.serials.tolist(), rows.counts.tolist(), strict=True):
        wanted = spread[end : end + count]
        end += count
        others = {int(other) for other in owners[wanted] if other}
        if any(other > serial for other in others):
            losers.add(serial)
            continue
        losers |= others
        owners[wanted] = serial
    owners[np.isin(owners, np.array(sorted(losers), np.uint64))] = 0
    return owners, losers


def _keys_of(environment: Environment, serials: set[int]) -> list[bytes]:
    at = 8 * _SERIAL
    return [
        key
        for records in reader.all_records(environment)
        for key, value in zip(records.keys, records.values, strict=True)
        if len(value) >= HEADER_BYTES and int.from_bytes(value[at : at + 8], "little") in serials
    ]
