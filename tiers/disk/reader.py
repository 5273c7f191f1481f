"""Reads and lists the pages of one environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import ge
from typing import Final

import lmdb
import numpy as np

from pagetier.shm._core import HISTORY_BYTES, KEY_BYTES, STORED_PAGE_LAYOUT
from pagetier.shm.row_arrays import dtype_of
from pagetier.tiers.base import DoubtError, Incoming, ReadOutcome, ReadResult, StoredPages
from pagetier.tiers.disk import file_format
from pagetier.tiers.disk.data_file import DAMAGE
from pagetier.tiers.disk.environment import EntryCount, Environment, ReadReport, Transaction
from pagetier.tiers.disk.file_format import (
    FORMAT,
    HEADER_BYTES,
    NO_HISTORY,
    OLD_FORMAT,
    OLD_HEADER_BYTES,
    Header,
    RecordError,
)
from pagetier.tiers.page_checksum import page_checksum

BATCH: Final = 65536  # pages listed at once
NONSENSE: Final = Header(0, 0, 0, b"", ())
_OLD_FIELDS: Final = [
    ("format", "u1"),
    ("codec", "u1"),
    ("", "<u2"),
    ("space", "<u4"),
    ("size", "<u8"),
    ("stamp", "<u8"),
]
_FIXED: Final = np.dtype([*_OLD_FIELDS, ("", "V16"), ("history", f"V{HISTORY_BYTES}"), ("", "V16")])


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


def verified(page: Incoming, header: Header, *, whole: bool) -> ReadReport:
    """Returns the report of a page that was read. `whole`: the file had all bytes."""
    # The checksum is computed over the frames in the arena, after the last copy: it covers the disk, the kernel and the
    # copy into the arena. Both stores come through here, so no page of a disk is published without this comparison.
    wrong = _verify(page, header) if whole else "the file is too short"
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
    after, count = b"", environment.entry_count()
    while rows := rows_after(environment, after, count):
        after = rows[-1][0]
        count.add([value for _, value in rows])
        yield _stored_pages(environment, rows)
    if count.wrong:
        raise lmdb.CorruptedError(count.wrong)


def rows_after(environment: Environment, key: bytes, count: EntryCount) -> list[tuple[bytes, bytes]]:
    """Returns a batch of keys and headers: those after a key.

    Raises:
        lmdb.Error: LMDB failed.
        lmdb.CorruptedError: Keys are out of order: a walk over such a tree might not end.
    """
    with environment.listing() as txn:
        count.count(txn, environment.counted)
        cursor = txn.cursor(environment.pages)
        found = cursor.set_range(key + b"\0")
        rows = list(islice(cursor.iternext(), BATCH)) if found else []
    keys = [one for one, _ in rows]
    if any(map(ge, [key, *keys], keys)):
        raise lmdb.CorruptedError("its keys are out of order")
    return rows


def _stored_pages(environment: Environment, rows: list[tuple[bytes, bytes]]) -> StoredPages:
    """Drops the invalid rows: the receiver would reject the whole message otherwise."""
    spaces = {number: space for number, space in environment.spaces.items() if file_format.makes_sense(space)}
    rows = [row for row in rows if len(row[0]) == KEY_BYTES and len(row[1]) >= OLD_HEADER_BYTES]
    fixed = np.array([value for _, value in rows], f"S{HEADER_BYTES}").view(_FIXED)  # longer values are cut
    lengths = np.array([len(value) for _, value in rows], np.int64)
    old, new = fixed["format"] == OLD_FORMAT, (fixed["format"] == FORMAT) & (lengths >= HEADER_BYTES)
    numbers = np.array(sorted(spaces), np.uint32)
    good = np.isin(fixed["space"], numbers) & (old | new) & (fixed["codec"] == file_format.PLAIN)
    good &= (fixed["size"] > 0) & (fixed["size"] <= environment.largest_page)
    fixed["history"][old] = np.void(NO_HISTORY)
    pages = np.zeros(int(good.sum()), STORED_PAGE)
    pages["key"] = np.frombuffer(b"".join([key for key, _ in rows]), f"V{KEY_BYTES}")[good]
    for name in ("history", "size", "stamp"):
        pages[name] = fixed[name][good]
    pages["space"] = np.searchsorted(numbers, fixed["space"][good])
    return StoredPages(pages.tobytes(), tuple(spaces[number] for number in sorted(spaces)))
