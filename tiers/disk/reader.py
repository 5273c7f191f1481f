"""Reads and lists the pages of one environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import lmdb
import numpy as np
import numpy.typing as npt

from pagetier.shm import _core
from pagetier.shm._core import STORED_PAGE_LAYOUT, keys_ascend
from pagetier.shm.row_arrays import dtype_of
from pagetier.tiers.base import DoubtError, Incoming, ReadOutcome, ReadResult, StoredPages
from pagetier.tiers.disk import file_format
from pagetier.tiers.disk.data_file import DAMAGE
from pagetier.tiers.disk.environment import EntryCount, Environment, ReadReport, Record, Transaction
from pagetier.tiers.disk.file_format import Header, RecordError
from pagetier.tiers.page_checksum import page_checksum

BATCH: Final = 2048  # pages listed at once: few, because their objects then stay in the cache of the processor
NONSENSE: Final = Header(0, 0, 0, b"", ())
_MOST_BYTES: Final = (1 << 64) - 1  # a damaged file may say that it is longer
TOO_SHORT: Final = "the file is too short"
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


def all_records(environment: Environment) -> Iterator[list[Record]]:
    """Yields all records in batches. Raises like listed()."""
    after, count = b"", environment.entry_count()
    while records := _records_after(environment, after, count):
        after = records[-1][0]
        count.add(records)
        yield records
    if count.wrong:
        raise lmdb.CorruptedError(count.wrong)


def _records_after(environment: Environment, key: bytes, count: EntryCount) -> list[Record]:
    """Returns a batch of records, those after a key.

    Raises:
        lmdb.Error: LMDB failed.
        lmdb.CorruptedError: Keys are out of order: a walk over such a tree might not end.
    """
    with environment.listing() as txn:
        count.count(txn, environment.counted)
        cursor = txn.cursor(environment.pages)
        found = cursor.set_range(key + b"\0")
        records = list(islice(cursor.iternext(), BATCH)) if found else []
    if not keys_ascend(records, key):
        raise lmdb.CorruptedError("its keys are out of order")
    return records


def stored_pages(environment: Environment, records: list[Record]) -> StoredPages:
    """Drops the invalid records: the receiver would reject the whole message otherwise."""
    largest, slot_bytes = min(environment.largest_page, _MOST_BYTES), environment.shape.frame_bytes
    valid = _core.stored_pages(records, environment.FORMAT, largest, slot_bytes)
    pages, there = np.frombuffer(valid, STORED_PAGE), environment.spaces
    named = _numbers_in(pages["space"])
    numbers = [number for number in named if number in there and file_format.makes_sense(there[number])]
    if numbers == named == [0]:
        return StoredPages(bytes(valid), (there[0],))
    if len(numbers) < len(named):
        pages = pages[np.isin(pages["space"], np.array(numbers, np.uint32))]
    pages["space"] = np.searchsorted(np.array(numbers, np.uint32), pages["space"])
    return StoredPages(pages.tobytes(), tuple(there[number] for number in numbers))


def _numbers_in(spaces: npt.NDArray[np.uint32]) -> list[int]:
    """Returns the numbers of namespaces, each once. Most tiers have one, whose number is 0: it takes no sort."""
    numbers: list[int] = [0] if len(spaces) and not spaces.any() else np.unique(spaces).tolist()
    return numbers
