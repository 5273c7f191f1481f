"""Reads and lists the pages of one environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress, islice
from operator import ge
from typing import Final

import lmdb
import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.shm._core import HISTORY_BYTES, KEY_BYTES, STORED_PAGE_LAYOUT
from pagetier.shm.row_arrays import dtype_of
from pagetier.tiers.base import DoubtError, Incoming, ReadOutcome, ReadResult, StoredPages
from pagetier.tiers.disk import file_format
from pagetier.tiers.disk.data_file import DAMAGE
from pagetier.tiers.disk.environment import EntryCount, Environment, ReadReport, Transaction
from pagetier.tiers.disk.file_format import (
    COMPRESSED,
    COMPRESSED_FORMAT,
    FORMAT,
    HEADER_BYTES,
    NO_HISTORY,
    OLD_FORMAT,
    OLD_HEADER_BYTES,
    PLAIN,
    Header,
    RecordError,
)
from pagetier.tiers.page_checksum import page_checksum

BATCH: Final = 2048  # pages listed at once: few, because their objects then stay in the cache of the processor
NONSENSE: Final = Header(0, 0, 0, b"", ())
TOO_SHORT: Final = "the file is too short"
_OLD_FIELDS: Final = [
    ("format", "u1"),
    ("codec", "u1"),
    ("", "<u2"),
    ("space", "<u4"),
    ("size", "<u8"),
    ("stamp", "<u8"),
]
_FIXED: Final = np.dtype([*_OLD_FIELDS, ("", "V16"), ("history", f"V{HISTORY_BYTES}"), ("", "<u8"), ("coded", "<u8")])


class Records(msgspec.Struct, frozen=True):
    """Some records, by columns: keys, headers and the lengths of the headers."""

    keys: list[bytes]
    values: list[bytes]
    lengths: npt.NDArray[np.int64]

    def only(self, chosen: npt.NDArray[np.bool_]) -> Records:
        """Returns some of the records."""
        which = chosen.tolist()
        return Records(list(compress(self.keys, which)), list(compress(self.values, which)), self.lengths[chosen])


STORED_PAGE: Final = dtype_of(STORED_PAGE_LAYOUT)
ABSENT: Final = ReadReport(ReadResult(ReadOutcome.ABSENT))
_EXACT: Final = ReadReport(ReadResult(ReadOutcome.EXACT))


def read(environment: Environment, page: Incoming) -> ReadReport:
    """Reads a page into its frames and verifies it there. Raises DoubtError if the environment is damaged."""
    try:
        return environment.read(page)
    except DAMAGE as error:
        raise DoubtError(environment.broke(error)) from error
    except (OSError, lmdb.Error) as error:
        return ReadReport(ReadResult(ReadOutcome.FAILED, str(error)))


def verified(page: Incoming, header: Header, wrong: str) -> ReadReport:
    """Returns the report of a page that was read. `wrong`: why the file does not have its bytes, or ""."""
    # The checksum is computed over the frames in the arena, after the last copy: it covers the disk, the kernel and the
    # copy into the arena. Both stores come through here, so no page of a disk is published without this comparison.
    wrong = wrong or _verify(page, header)
    return ReadReport(ReadResult(ReadOutcome.DAMAGED, wrong), header) if wrong else _EXACT


def is_other(header: Header | None, page: Incoming) -> bool:
    """Returns whether this page is not there: there is no header, or a valid one of another size."""
    return header is None or (header.size != page.size and header != NONSENSE)


def _verify(page: Incoming, header: Header) -> str:
    exact = page_checksum(page.key, page.size, page.frames) == header.checksum
    return "" if exact else "the checksum does not match"


def headers(environment: Environment, keys: Sequence[bytes]) -> list[Header | None]:
    """Returns the headers of these keys, NONSENSE for an invalid one. Raises lmdb.Error, DoubtError."""
    try:
        with environment.reading() as txn:
            return [header_in(environment, txn, key) for key in keys]
    except DAMAGE as error:
        raise DoubtError(environment.broke(error)) from error


def header_in(environment: Environment, txn: Transaction, key: bytes) -> Header | None:
    """Returns the header as the transaction sees it, NONSENSE if it is invalid."""
    value = txn.get(key, db=environment.pages)
    try:
        return None if value is None else environment.unpack(key, value)
    except RecordError:
        return NONSENSE


def listed(environment: Environment) -> Iterator[StoredPages]:
    """Yields all pages in batches. No transaction is open between them: it would prevent the reuse of freed pages.

    Yields:
        The pages of a batch.

    Raises:
        lmdb.Error: LMDB failed.
        lmdb.CorruptedError: Keys are out of order, or at the end the count of an unchanged environment is wrong.
    """
    for records in all_records(environment):
        yield stored_pages(environment, records)


def all_records(environment: Environment) -> Iterator[Records]:
    """Yields all records in batches. Raises like listed()."""
    after, count = b"", environment.entry_count()
    while records := _records_after(environment, after, count):
        after = records.keys[-1]
        count.add(records.values)
        yield records
    if count.wrong:
        raise lmdb.CorruptedError(count.wrong)


def _records_after(environment: Environment, key: bytes, count: EntryCount) -> Records | None:
    """Returns a batch of records, those after a key; None if there are none.

    Raises:
        lmdb.Error: LMDB failed.
        lmdb.CorruptedError: Keys are out of order: a walk over such a tree might not end.
    """
    with environment.listing() as txn:
        count.count(txn, environment.counted)
        cursor = txn.cursor(environment.pages)
        found = cursor.set_range(key + b"\0")
        rows = list(islice(cursor.iternext(), BATCH)) if found else []
    if not rows:
        return None
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    if any(map(ge, [key, *keys], keys)):
        raise lmdb.CorruptedError("its keys are out of order")
    return Records(keys, values, _lengths(values))


def _lengths(texts: Sequence[bytes]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(len, texts), np.int64, len(texts))


def stored_pages(environment: Environment, records: Records) -> StoredPages:
    """Drops the invalid records: the receiver would reject the whole message otherwise."""
    possible = (records.lengths >= OLD_HEADER_BYTES) & (_lengths(records.keys) == KEY_BYTES)
    if not possible.all():
        records = records.only(possible)
    fixed = np.array(records.values, f"S{HEADER_BYTES}").view(_FIXED)  # longer values are cut
    old, new = fixed["format"] == OLD_FORMAT, (fixed["format"] == FORMAT) & (records.lengths >= HEADER_BYTES)
    there = environment.spaces
    present = [number for number in np.unique(fixed["space"]).tolist() if number in there]
    spaces = {number: there[number] for number in present if file_format.makes_sense(there[number])}
    numbers = np.array(list(spaces), np.uint32)
    coded = (fixed["format"] == COMPRESSED_FORMAT) & (fixed["codec"] == COMPRESSED)
    coded &= (records.lengths >= HEADER_BYTES) & (COMPRESSED_FORMAT in environment.READABLE)
    good = np.isin(fixed["space"], numbers) & ((old | new) & (fixed["codec"] == PLAIN) | coded)
    good &= (fixed["size"] > 0) & (fixed["size"] <= environment.largest_page)
    fixed["history"][old] = np.void(NO_HISTORY)
    pages = np.zeros(int(good.sum()), STORED_PAGE)
    pages["key"] = np.frombuffer(b"".join(records.keys), f"V{KEY_BYTES}")[good]
    for name in ("history", "size", "stamp"):
        pages[name] = fixed[name][good]
    pages["space"] = np.searchsorted(numbers, fixed["space"][good])
    if coded.any():
        pages["slots"] = np.where(coded, -(-fixed["coded"].view("<i8") // environment.shape.frame_bytes), 0)[good]
    return StoredPages(pages.tobytes(), tuple(spaces.values()))
