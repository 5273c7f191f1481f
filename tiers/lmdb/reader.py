"""Reads and lists the pages of one environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import ge
from typing import Final

import lmdb
import msgspec
import numpy as np

from pagetier.shm._core import HISTORY_BYTES, KEY_BYTES
from pagetier.tiers.base import DoubtError, Incoming, ReadOutcome, ReadResult, StoredPages
from pagetier.tiers.capacity import PAGE
from pagetier.tiers.lmdb import records
from pagetier.tiers.lmdb.environment import Environment, Transaction
from pagetier.tiers.lmdb.files import DAMAGE
from pagetier.tiers.lmdb.frame_count import BATCH, FrameCount
from pagetier.tiers.lmdb.records import (
    FORMAT,
    HEADER_BYTES,
    NO_HISTORY,
    OLD_FORMAT,
    OLD_HEADER_BYTES,
    Header,
    RecordError,
)

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


class ReadReport(msgspec.Struct, frozen=True):
    """The result of a read, and the header of a page that was found damaged."""

    result: ReadResult
    header: Header | None = None


_ABSENT: Final = ReadReport(ReadResult(ReadOutcome.ABSENT))
_EXACT: Final = ReadReport(ReadResult(ReadOutcome.EXACT))


def read(environment: Environment, page: Incoming) -> ReadReport:
    """Reads a page into its frames and verifies it there. Raises DoubtError if the environment is damaged."""
    try:
        with environment.reading() as txn:
            header = header_in(environment, txn, page.key)
            if header is None or (header.size != page.size and header != NONSENSE):
                return _ABSENT
            whole = environment.reader.read(header.runs, page.frames)
    except DAMAGE as error:
        raise DoubtError(environment.broke(error)) from error
    except (OSError, lmdb.Error) as error:
        return ReadReport(ReadResult(ReadOutcome.FAILED, str(error)))
    wrong = _verify(page, header) if whole else "the file is too short"
    return ReadReport(ReadResult(ReadOutcome.DAMAGED, wrong), header) if wrong else _EXACT


def _verify(page: Incoming, header: Header) -> str:
    exact = records.checksum(page.key, page.size, page.frames) == header.checksum
    return "" if exact else "the checksum does not match"


def headers(environment: Environment, keys: Sequence[bytes]) -> list[Header | None]:
    """Returns the headers of these keys, NONSENSE for an invalid one. Raises lmdb.Error, DoubtError."""
    try:
        with environment.reading() as txn:
            return [header_in(environment, txn, key) for key in keys]
    except DAMAGE as error:
        raise DoubtError(environment.broke(error)) from error


def header_in(environment: Environment, txn: Transaction, key: bytes) -> Header | None:
    """Returns the header as the transaction sees it, NONSENSE if it is invalid or names frames past the file's end."""
    value = txn.get(key, db=environment.pages)
    try:
        header = None if value is None else records.unpack_header(value)
    except RecordError:
        return NONSENSE
    return (
        header if header is None or records.fits(header, environment.shape.stride, environment.file_pages) else NONSENSE
    )


def raw(environment: Environment, key: bytes, frames: Callable[[int], Sequence[memoryview]]) -> Header | None:
    """Reads a page without verifying it, into the buffers that `frames` returns for their number. None if it fails."""
    with environment.reading() as txn:
        header = header_in(environment, txn, key)
        if header is None or header == NONSENSE:
            return None
        whole = environment.reader.read(header.runs, frames(sum(run.frames for run in header.runs)))
    return header if whole else None


def listed(environment: Environment) -> Iterator[StoredPages]:
    """Yields all pages in batches. No transaction is open between them: it would prevent the reuse of freed pages.

    Yields:
        The pages of a batch.

    Raises:
        lmdb.Error: LMDB failed.
        lmdb.CorruptedError: Keys are out of order (a walk over such a tree might not end), or at the end an unchanged
            environment does not have as many frames as its pages.
    """
    after, tally = b"", FrameCount(environment.shape.frame_bytes)
    while rows := _rows_after(environment, after, tally):
        keys = [key for key, _ in rows]
        if any(map(ge, [after, *keys], keys)):
            raise lmdb.CorruptedError("its keys are out of order")
        after = keys[-1]
        tally.add([value for _, value in rows])
        yield _stored_pages(environment, rows)
    if tally.wrong:
        raise lmdb.CorruptedError(tally.wrong)


def _rows_after(environment: Environment, key: bytes, tally: FrameCount) -> list[tuple[bytes, bytes]]:
    with environment.listing() as txn:
        tally.count(txn, environment.frames)
        cursor = txn.cursor(environment.pages)
        found = cursor.set_range(key + b"\0")
        return list(islice(cursor.iternext(), BATCH)) if found else []


def _stored_pages(environment: Environment, rows: list[tuple[bytes, bytes]]) -> StoredPages:
    """Drops the invalid rows: the receiver would reject the whole message otherwise."""
    spaces = {number: space for number, space in environment.spaces.items() if records.makes_sense(space)}
    rows = [row for row in rows if len(row[0]) == KEY_BYTES and len(row[1]) >= OLD_HEADER_BYTES]
    fixed = np.array([value for _, value in rows], f"S{HEADER_BYTES}").view(_FIXED)  # longer values are cut
    lengths = np.array([len(value) for _, value in rows], np.int64)
    old, new = fixed["format"] == OLD_FORMAT, (fixed["format"] == FORMAT) & (lengths >= HEADER_BYTES)
    numbers = np.array(sorted(spaces), np.uint32)
    good = np.isin(fixed["space"], numbers) & (old | new) & (fixed["codec"] == records.PLAIN)
    good &= (fixed["size"] > 0) & (fixed["size"] <= environment.file_pages * PAGE)
    fixed["history"][old] = np.void(NO_HISTORY)
    keys = np.frombuffer(b"".join([key for key, _ in rows]), f"V{KEY_BYTES}")
    return StoredPages(
        keys=keys[good].tobytes(),
        sizes=fixed["size"][good].tobytes(),
        stamps=fixed["stamp"][good].tobytes(),
        spaces=np.searchsorted(numbers, fixed["space"][good]).astype("<u4").tobytes(),
        table=tuple(spaces[number] for number in sorted(spaces)),
        histories=fixed["history"][good].tobytes(),
    )
