"""Stores and drops pages whose frames are values of LMDB, in transactions of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import lmdb
import msgspec

from pagetier.tiers.base import Outgoing
from pagetier.tiers.disk import file_format, reader
from pagetier.tiers.disk.file_format import Header
from pagetier.tiers.disk.read_priority import Patience, ReaderCount
from pagetier.tiers.disk.reports import Transaction
from pagetier.tiers.disk.writer import FullError
from pagetier.tiers.lmdb import free_space
from pagetier.tiers.lmdb.frame_reader import page_after
from pagetier.tiers.page_checksum import page_checksum

if TYPE_CHECKING:
    from pagetier.tiers.lmdb.lmdb_environment import LmdbEnvironment


def store_together(environment: LmdbEnvironment, pages: Sequence[Outgoing], readers: ReaderCount) -> None:
    """Stores pages in one transaction. Raises FullError, lmdb.Error."""
    if not free_space.can_store(environment, len(pages), sum(len(page.frames) for page in pages)):
        raise FullError(environment)
    sums = [page_checksum(page.key, page.size, page.frames) for page in pages]
    patience = Patience(readers)
    with environment.changing() as txn:
        for page, checksum in zip(pages, sums, strict=True):
            number = environment.number_of(txn, page.space)
            put(environment, txn, page, Header(number, page.size, page.stamp, checksum, (), page.history), patience)


def put(environment: LmdbEnvironment, txn: Transaction, page: Outgoing, header: Header, patience: Patience) -> None:
    """Stores a page in place of what the key had. The header's runs are filled in here."""
    delete(environment, txn, page.key)
    cursor = txn.cursor(environment.frames)
    places = []
    for number, frame in enumerate(page.frames):
        cursor.put(file_format.frame_key(page.key, number), frame)
        places.append(page_after(cursor.key()))
        patience.give_way()
    runs = file_format.runs_of(places, environment.shape.stride)
    environment.writeback.wrote(runs)
    txn.put(page.key, file_format.pack_header(msgspec.structs.replace(header, runs=runs)), db=environment.pages)


def delete(environment: LmdbEnvironment, txn: Transaction, key: bytes) -> None:
    """Deletes header and frames, however many there are, since the header may be damaged. Ignores unknown keys.

    Raises:
        lmdb.Error: LMDB failed.
        lmdb.CorruptedError: LMDB met damage in a cursor.
    """
    if not txn.delete(key, db=environment.pages):
        return
    try:
        _delete_frames(txn.cursor(environment.frames), key)
    except SystemError as error:  # py-lmdb raises it for LMDB's errors in a cursor
        if isinstance(error.__cause__, lmdb.MapFullError | lmdb.DiskError):
            raise error.__cause__ from error
        raise lmdb.CorruptedError(str(error.__cause__ or error)) from error


def _delete_frames(cursor: lmdb.Cursor[memoryview], key: bytes) -> None:
    more = cursor.set_range(key)
    while more and cursor.key()[: len(key)] == key:
        more = cursor.delete() and bool(cursor.key())


def frames_of_keys(environment: LmdbEnvironment, keys: Sequence[bytes]) -> int:
    """Returns the number of frames of these pages."""
    headers = filter(None, reader.headers(environment, keys))
    return sum(run.frames for header in headers for run in header.runs)


def raw(environment: LmdbEnvironment, key: bytes, frames: Callable[[int], Sequence[memoryview]]) -> Header | None:
    """Reads a page without verifying it, into the buffers that `frames` returns for their number. None if it fails."""
    with environment.reading() as txn:
        header = reader.header_in(environment, txn, key)
        if header is None or header == reader.NONSENSE:
            return None
        whole = environment.reader.read(header.runs, frames(sum(run.frames for run in header.runs)))
    return header if whole else None
