"""LMDB's data file: how it is opened, the length that its meta pages promise, and the errors that mean damage."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

import lmdb

from pagetier.tiers.capacity import PAGE
from pagetier.tiers.disk.file_system import DATA, LOCK

_MAGIC: Final = 0xBEEFC0DE
# At byte 16 of each of the first two pages: magic, version, address, map size; then for two trees, the free list and
# the databases, a page size, flags and 42 bytes that are not read; then the number of the last page.
_META: Final = struct.Struct("<I20x4xH42x4xH42xQ")
_META_AT: Final = 16
_FLAGS: Final = (8, 0)  # of the trees: integer keys, and none. LMDB aborts on other values
_FOR_DROPPING: Final = 1 << 20  # trees are copied before the pages that they free are reusable

# If LMDB meets damage while it looks up a database's root, it reports nothing at first, and then BadTxnError for every
# further call of the transaction; if the flags in the root are damaged, BadDbiError.
DAMAGE: Final = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.PageFullError,
    lmdb.CursorFullError,
    lmdb.BadTxnError,
    lmdb.BadDbiError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.MapResizedError,
)


def open_data_file(folder: Path, map_bytes: int) -> lmdb.Environment:
    """Opens or creates LMDB's files in a folder. Its commits do not sync. Raises lmdb.Error, OSError."""
    _allocate_lock(folder)
    return lmdb.open(
        str(folder), map_size=map_bytes, sync=False, metasync=False, readahead=False, mode=0o600, max_dbs=4
    )


def _allocate_lock(folder: Path) -> None:
    """Gives LMDB's table of readers a block: LMDB maps the file, and without one a full disk kills the process."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, PAGE)
    finally:
        os.close(descriptor)


def map_bytes(folder: Path, share: int) -> int:
    """Returns the size of the map: the share of the cap, or more for an oversized file, to drop pages from it."""
    try:
        there = (folder / DATA).stat().st_size
    except FileNotFoundError:
        return share
    return share if there <= share else -(-there // PAGE) * PAGE + _FOR_DROPPING


def insist_on_flags(*databases: lmdb._Database) -> None:
    """Raises CorruptedError for a database with flags: pagetier sets none, and flags change how LMDB finds keys."""
    if any(flag for database in databases for flag in database.flags().values()):
        raise lmdb.CorruptedError("a database has flags, and pagetier sets none")


def expected_bytes(data: Path) -> int:
    """Returns the length that the file must have according to its two meta pages; 0 if one of them is invalid."""
    with data.open("rb") as file:
        lengths = [_length_in(file.read(PAGE)), _length_in(file.read(PAGE))]
    return max(lengths) if all(lengths) else 0


def _length_in(meta: bytes) -> int:
    if len(meta) < PAGE:
        return 0
    magic, *flags, last = _META.unpack_from(meta, _META_AT)
    return (last + 1) * PAGE if magic == _MAGIC and tuple(flags) == _FLAGS else 0
