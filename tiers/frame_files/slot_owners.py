"""Derives from the records which write owns each slot, when an environment is opened."""

from __future__ import annotations

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

_SERIAL: Final = HEADER_BYTES // 8 - 2  # the word of a record, before 8 bytes of 0
_SIZE: Final = 1
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
    """Valid records. `slots` are those of all of them in order, `counts` how many each has.

    `beyond` others name slots that the files do not have.
    """

    serials: _Words
    counts: _Numbers
    slots: _Numbers
    beyond: int


def find_owners(environment: Environment, slots: int) -> SlotOwners:
    """Returns what all records say; those of slots beyond `slots` are wrong. Raises lmdb.Error."""
    owners = np.zeros(slots, np.uint64)
    wrong: list[bytes] = []
    losers: set[int] = set()
    pages: list[StoredPages] = []
    last = beyond = 0
    for records in reader.all_records(environment):
        pages.append(reader.stored_pages(environment, records))
        good = _valid(records, environment.shape.frame_bytes, slots, wrong)
        last = max(last, int(good.serials.max(initial=0)))
        beyond += good.beyond
        if not _give(owners, good):
            losers |= _dispute(owners, good)
    if losers:
        owners[np.isin(owners, np.array(sorted(losers), np.uint64))] = 0
        wrong += _keys_of(environment, losers)
    return SlotOwners(owners, wrong, last + 1, beyond, pages)


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
    expected = -(-words[begins + _SIZE].astype(np.int64) // frame_bytes)
    whole = (words[ends - 1] == checks) & (counts == expected)
    good = whole & (ends_at <= slots)
    if not good.all():
        wrong += compress(records.keys, (~good).tolist())
    of_extent = np.repeat(good, extents)
    slots_of = _spread(first[of_extent], frames[of_extent])
    return _Rows(words[begins + _SERIAL][good], counts[good], slots_of, int(np.count_nonzero(whole & ~good)))


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


def _give(owners: _Words, rows: _Rows) -> bool:
    """Gives each slot to its record. Returns False, and changes nothing, if two records name one slot."""
    if owners[rows.slots].any() or len(np.unique(rows.slots)) < len(rows.slots):
        return False
    owners[rows.slots] = np.repeat(rows.serials, rows.counts)
    return True


def _dispute(owners: _Words, rows: _Rows) -> set[int]:
    """Gives each slot to the newest record that names it. Returns the serials of the others."""
    losers: set[int] = set()
    end = 0
    for serial, count in zip(rows.serials.tolist(), rows.counts.tolist(), strict=True):
        slots = rows.slots[end : end + count]
        end += count
        others = {int(other) for other in owners[slots] if other}
        if any(other > serial for other in others):
            losers.add(serial)
            continue
        losers |= others
        owners[slots] = serial
    return losers


def _keys_of(environment: Environment, serials: set[int]) -> list[bytes]:
    at = 8 * _SERIAL
    return [
        key
        for records in reader.all_records(environment)
        for key, value in zip(records.keys, records.values, strict=True)
        if len(value) >= HEADER_BYTES and int.from_bytes(value[at : at + 8], "little") in serials
    ]
