"""Derives from the records which write owns each slot, when an environment is opened."""

from __future__ import annotations

from collections.abc import Container
from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.shm._core import claim_slots
from pagetier.tiers.base import StoredPages
from pagetier.tiers.disk import reader
from pagetier.tiers.disk.environment import Environment
from pagetier.tiers.disk.file_format import HEADER_BYTES
from pagetier.tiers.frame_files.records import mark_of

_SERIAL_AT: Final = HEADER_BYTES - 16  # in a record
_Marks: TypeAlias = npt.NDArray[np.uint32]


class SlotOwners(msgspec.Struct, frozen=True):
    """What the records say: the owners of the slots, the pages, and the keys of records that must be dropped.

    `owners` has the mark of the write that owns each slot, 0 for a free one. Of two records that name one slot, the
    older one must be dropped: it is a leaf of LMDB that the disk returned as it was before. `beyond` of the dropped
    ones are valid, and name slots that the files do not have.
    """

    owners: _Marks
    wrong: list[bytes]
    next_serial: int
    beyond: int
    pages: list[StoredPages]


def find_owners(environment: Environment, slots: int) -> SlotOwners:
    """Returns what all records say; those of slots beyond `slots` are wrong. Raises lmdb.Error."""
    owners, losers = np.zeros(slots, np.uint32), set[int]()
    wrong: list[bytes] = []
    pages: list[StoredPages] = []
    newest = beyond = 0
    for records in reader.all_records(environment):
        pages.append(reader.stored_pages(environment, records))
        claimed = claim_slots(records, environment.shape.frame_bytes, owners)
        wrong += claimed.wrong
        losers.update(claimed.losers)
        newest, beyond = max(newest, claimed.newest), beyond + claimed.beyond
    if losers:
        owners[np.isin(owners, np.array(sorted(losers), np.uint32))] = 0
        wrong += _keys_of(environment, losers)
    return SlotOwners(owners, wrong, newest + 1, beyond, pages)


def _keys_of(environment: Environment, marks: Container[int]) -> list[bytes]:
    return [
        key
        for records in reader.all_records(environment)
        for key, value in records
        if len(value) >= HEADER_BYTES and _mark_in(value) in marks
    ]


def _mark_in(value: bytes) -> int:
    return mark_of(int.from_bytes(value[_SERIAL_AT : _SERIAL_AT + 8], "little"))
