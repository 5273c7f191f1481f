"""One LMDB environment: its databases, transactions and namespaces.

A write transaction begins and ends in one thread, and other writers wait for it. A commit does not sync anything: see
recovery.py for the consequences after a power loss.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

import lmdb
import msgspec

from pagetier.shm.failpoints import point
from pagetier.shm.protocol import Space
from pagetier.tiers.base import TierError
from pagetier.tiers.capacity import PAGE, Shape
from pagetier.tiers.lmdb import files, records
from pagetier.tiers.lmdb.frame_reader import Reader
from pagetier.tiers.lmdb.page_cache import Writeback
from pagetier.tiers.lmdb.records import About

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_KEEP_SIZE: Final = 1
_UNKNOWN: Final = frozenset((errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))
# Allocated beyond the need, so that one call serves several transactions.
_STEP: Final = 64 << 20
_STEP_PART: Final = 64  # but at most this part of the limit


class PreallocatedBlocks:
    """The blocks of one data file, up to `limit` bytes. Not thread-safe.

    Where allocation is unsupported it counts as done.
    """

    def __init__(self, descriptor: int, limit: int) -> None:
        self._descriptor = descriptor
        self._limit = limit
        self._step = min(_STEP, limit // _STEP_PART)
        self.end = 0
        """The file has all of its blocks up to this offset."""

    def allocate_to(self, end: int) -> bool:
        """Returns whether the file has its blocks up to `end` or its limit, allocating them if needed.

        Its length stays.
        """
        wanted = min(end, self._limit)
        return wanted <= self.end or self._give(min(wanted + self._step, self._limit)) or self._give(wanted)

    def _give(self, end: int) -> bool:
        refusal = _allocate(self._descriptor, self.end, end - self.end)
        if refusal and refusal not in _UNKNOWN:
            return False
        self.end = self._limit if refusal else end
        return True


def _allocate(descriptor: int, start: int, length: int) -> int:
    """Allocates without changing the file's length. Returns the error number, or 0."""
    while _libc.fallocate(descriptor, _KEEP_SIZE, start, length):
        if (number := ctypes.get_errno()) != errno.EINTR:
            return number
    return 0


_ABOUT: Final = b"about"
_FOR_DROPPING: Final = 1 << 20  # trees are copied before the pages that they free are reusable
Transaction: TypeAlias = "lmdb.Transaction[memoryview]"


class Environment:
    """The environment in a folder, which is created. Raises lmdb.Error, OSError, MsgspecError, UnicodeDecodeError.

    `proven` is set by the opener if the files were verified just before they were opened.
    """

    def __init__(self, folder: Path, shape: Shape, about: About) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = folder
        self.shape = shape
        self.used = 0  # frames
        self.proven = False
        self._deleted = ""  # why its data file was deleted
        self._spaces: dict[Space, int] = {}
        self._new_spaces: dict[Space, int] = {}
        self._one_changes = threading.Lock()
        with contextlib.ExitStack() as undo:
            map_bytes = _map_bytes(folder, shape.map_bytes)
            self._env = _open(folder, map_bytes)
            undo.callback(self._env.close)
            self._file = os.open(
                folder / files.DATA, os.O_RDWR | os.O_CLOEXEC
            )  # a descriptor for reading gets no blocks
            undo.callback(os.close, self._file)
            self._open_databases(about)
            self._length = os.fstat(self._file).st_size
            self._undo = undo.pop_all()
        self.blocks = PreallocatedBlocks(self._file, map_bytes)
        self.writeback = Writeback(self._file, shape.stride)
        self.reader = Reader(self._file, shape.frame_bytes, shape.stride)

    def _open_databases(self, about: About) -> None:
        with self._env.begin(write=True) as txn:
            self.frames = self._env.open_db(b"frames", txn)
            self.pages = self._env.open_db(b"pages", txn)
            self._names = self._env.open_db(b"spaces", txn)
            self._notes = self._env.open_db(_ABOUT, txn)
            _insist_on_flags(self.frames, self.pages, self._names, self._notes)
            if txn.get(_ABOUT, db=self._notes) is None:
                txn.put(_ABOUT, msgspec.msgpack.encode(about), db=self._notes)
            self.about = msgspec.msgpack.decode(txn.get(_ABOUT, b"", db=self._notes), type=About)
            self.used = txn.stat(self.frames)["entries"]
            for number, name in txn.cursor(self._names):
                self._spaces[msgspec.msgpack.decode(name, type=Space)] = records.unpack_number(number)

    @property
    def file_bytes(self) -> int:
        """The length of its files."""
        return sum((self.folder / name).stat().st_size for name in (files.DATA, files.LOCK))

    @property
    def file_pages(self) -> int:
        """The number of pages in its file, in use or not."""
        last: int = self._env.info()["last_pgno"]
        return last + 1

    def used_pages(self) -> tuple[int, int]:
        """Returns the pages used by trees and by frames. The pages of the free lists are not counted."""
        with self.reading() as txn:
            stats = [self._env.stat(), *map(txn.stat, (self.frames, self.pages, self._names, self._notes))]
        trees = sum(one["branch_pages"] + one["leaf_pages"] for one in stats)
        return trees, sum(one["overflow_pages"] for one in stats)

    @property
    def spaces(self) -> dict[int, Space]:
        """The namespaces by their numbers in this environment."""
        return {number: space for space, number in self._spaces.copy().items()}

    def reading(self) -> Transaction:
        """Returns a read transaction: pages that it sees are not reused while it is open."""
        return self._env.begin(buffers=True)

    def listing(self) -> lmdb.Transaction[bytes]:
        """Returns a read transaction whose results may outlive it."""
        return self._env.begin()

    @contextlib.contextmanager
    def changing(self) -> Iterator[Transaction]:
        """Runs a write transaction that is committed at the end, and leaves no trace if anything fails.

        Yields:
            The transaction.

        Raises:
            lmdb.Error: LMDB failed, or its count of frames changed since the last transaction.
            TierError: The file was changed by something else.
            OSError: The file is gone.
        """
        with self._one_changes:
            self._insist()
            try:
                with self._env.begin(write=True, buffers=True) as txn:
                    point("store.begun")
                    self._insist_on_count(txn)
                    yield txn
                    point("store.changed")
                    used = txn.stat(self.frames)["entries"]
                point("store.committed")
                self._lengthen()
                self._spaces |= self._new_spaces
                self.used = used
                point("store.lengthened")
                self.writeback.committed()
            finally:
                self._new_spaces = {}
                self.writeback.aborted()

    def _lengthen(self) -> None:
        """Extends the file to the length in its meta page: LMDB does not write pages at the end that are free again."""
        promised = self.file_pages * PAGE
        with contextlib.suppress(OSError):  # a file that is opened before it grows is then found too short
            if os.fstat(self._file).st_size < promised:
                os.ftruncate(self._file, promised)
            self._length = max(self._length, promised)

    def _insist(self) -> None:
        """Raises TierError if the file was changed: a truncated file would grow again, with holes in place of pages."""
        if why := self.changed():
            raise TierError(why)

    def _insist_on_count(self, txn: Transaction) -> None:
        """Raises CorruptedError if the count of frames changed, since the free room follows from it."""
        there = txn.stat(self.frames)["entries"]
        if there != self.used:
            raise lmdb.CorruptedError(f"it counts {there} frames instead of {self.used}")

    def changed(self) -> str:
        """Returns how the file was changed by something else since it was opened, or "".

        Raises OSError if it is gone.
        """
        if self._deleted:
            return self._deleted
        data, length = self.folder / files.DATA, self._length  # read first, since the file may grow at any time
        if not files.is_still(self._file, data):
            return f"{data} was replaced while it was open"
        there = os.fstat(self._file).st_size
        return f"{data} was cut while it was open: {there} bytes of {length}" if there < length else ""

    def number_of(self, txn: Transaction, space: Space) -> int:
        """Returns the namespace's number in this environment, assigning one if it is new."""
        number = self._spaces.get(space, self._new_spaces.get(space))
        if number is None:
            number = max((*self._spaces.values(), *self._new_spaces.values()), default=-1) + 1
            txn.put(records.pack_number(number), msgspec.msgpack.encode(space), db=self._names)
            self._new_spaces[space] = number
        return number

    def age(self) -> None:
        """Commits until the pages that were freed are reusable. Raises lmdb.Error."""
        for turn in (b"\0", b"\1"):
            with self.changing() as txn:
                txn.put(b"turn", turn, db=self._notes)

    def fetch_heads(self, runs: tuple[records.FrameRun, ...]) -> None:
        """Starts reading the first pages of these frames, which freeing them will touch."""
        for offset in self.reader.heads(runs):
            files.prefetch(self._file, offset, PAGE)

    def sync(self) -> None:
        """Makes everything that was committed durable. Raises lmdb.Error."""
        self._env.sync(True)  # noqa: FBT003  force it, although commits do not sync

    def broke(self, error: lmdb.Error) -> str:
        """Returns the message about damage that LMDB met, after the files were marked or deleted.

        A verification does not find everything that LMDB stumbles over. If the files were verified just before, the
        next verification would not find the damage either, so the file is deleted and the next process starts with an
        empty one. The reason is kept first, for other threads that find the file missing.
        """
        if not self.proven:
            return f"{self.folder} is damaged ({error}): the next disk worker verifies it"
        self._deleted = f"{self.folder} is damaged ({error}), which verification does not detect: it is rebuilt empty"
        with contextlib.suppress(OSError):
            (self.folder / files.DATA).unlink()
        return self._deleted

    def close(self) -> None:
        """Closes the environment. May be called again."""
        self._undo.close()


def _insist_on_flags(*databases: lmdb._Database) -> None:
    """Raises CorruptedError for a database with flags: pagetier sets none, and flags change how LMDB finds keys."""
    if any(flag for database in databases for flag in database.flags().values()):
        raise lmdb.CorruptedError("a database has flags, and pagetier sets none")


def _map_bytes(folder: Path, share: int) -> int:
    """Returns the size of the map: the share of the cap, or more for an oversized file, to drop pages from it."""
    try:
        there = (folder / files.DATA).stat().st_size
    except FileNotFoundError:
        return share
    return share if there <= share else -(-there // PAGE) * PAGE + _FOR_DROPPING


def _open(folder: Path, map_bytes: int) -> lmdb.Environment:
    return lmdb.open(
        str(folder), map_size=map_bytes, sync=False, metasync=False, readahead=False, mode=0o600, max_dbs=4
    )
