"""What the environments of both stores share: LMDB's databases of pages and namespaces, and their transactions.

A write transaction begins and ends in one thread, and other writers wait for it. A commit does not sync anything: see
recovery.py for the consequences after a power loss.
"""

from __future__ import annotations

import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final, Protocol, TypeAlias

import lmdb
import msgspec

from pagetier.shm.failpoints import point
from pagetier.shm.protocol import Space
from pagetier.tiers.base import Incoming, Outgoing, ReadResult, StoredPages, TierError
from pagetier.tiers.capacity import PAGE, Shape, StoreName
from pagetier.tiers.disk import data_file, file_format, file_system
from pagetier.tiers.disk.blocks import PreallocatedBlocks
from pagetier.tiers.disk.file_format import About, Header
from pagetier.tiers.disk.read_priority import ReaderCount

_ABOUT: Final = b"about"
Transaction: TypeAlias = "lmdb.Transaction[memoryview]"
Listing: TypeAlias = "lmdb.Transaction[bytes]"
Record: TypeAlias = tuple[bytes, bytes]
"""A key of the database of pages, and its header."""


class ReadReport(msgspec.Struct, frozen=True):
    """The result of a read, and the header of a page that was found damaged."""

    result: ReadResult
    header: Header | None = None


class EntryCount(Protocol):
    """Compares how many entries LMDB counts with what is listed."""

    @property
    def wrong(self) -> str:
        """The difference, or "" if there is none or it is unknown."""

    def count(self, txn: Listing, database: lmdb._Database) -> None:
        """Records the number of entries, in each transaction whose records are added."""

    def add(self, records: list[Record]) -> None:
        """Adds some records."""


class Environment(ABC):
    """The environment in a folder, which is created. Raises lmdb.Error, OSError, MsgspecError, UnicodeDecodeError.

    `proven` is set by the opener if the files were verified just before they were opened.
    """

    STORE: ClassVar[StoreName]
    COUNTED: ClassVar[bytes]
    """The database whose entries must not change between transactions."""
    FORMAT: ClassVar[int] = file_format.FORMAT
    """The format in which tiers are made."""
    READABLE: ClassVar[frozenset[int]] = file_format.READABLE
    """The formats of the tiers that it can open."""

    def __init__(self, folder: Path, shape: Shape, about: About) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = folder
        self.shape = shape
        self.entries = 0
        self.proven = False
        self._deleted = ""  # why its data file was deleted
        self._spaces: dict[Space, int] = {}
        self._new_spaces: dict[Space, int] = {}
        self._one_changes = threading.Lock()
        with contextlib.ExitStack() as undo:
            map_bytes = data_file.map_bytes(folder, shape.map_bytes)
            self._env = data_file.open_data_file(folder, map_bytes)
            undo.callback(self._env.close)
            self._file = os.open(
                folder / file_system.DATA, os.O_RDWR | os.O_CLOEXEC
            )  # a descriptor for reading gets no blocks
            undo.callback(os.close, self._file)
            self._open_databases(about)
            self._length = os.fstat(self._file).st_size
            self.blocks = PreallocatedBlocks(self._file, map_bytes)
            self._open_frames(undo)
            self._undo = undo.pop_all()

    def _open_databases(self, about: About) -> None:
        with self._env.begin(write=True) as txn:
            self.counted = self._env.open_db(self.COUNTED, txn)
            self.pages = self._env.open_db(b"pages", txn)
            self._names = self._env.open_db(b"spaces", txn)
            self._notes = self._env.open_db(_ABOUT, txn)
            data_file.insist_on_flags(self.counted, self.pages, self._names, self._notes)
            if txn.get(_ABOUT, db=self._notes) is None:
                txn.put(_ABOUT, msgspec.msgpack.encode(about), db=self._notes)
            self.about = msgspec.msgpack.decode(txn.get(_ABOUT, b"", db=self._notes), type=About)
            self.entries = txn.stat(self.counted)["entries"]
            for number, name in txn.cursor(self._names):
                self._spaces[msgspec.msgpack.decode(name, type=Space)] = file_format.unpack_number(number)

    @abstractmethod
    def _open_frames(self, undo: contextlib.ExitStack) -> None:
        """Opens what belongs to the frames; `undo` closes it with the environment."""

    @property
    @abstractmethod
    def used(self) -> int:
        """The number of frames in use."""

    @property
    @abstractmethod
    def largest_page(self) -> int:
        """The largest size that a page can have; a larger one in a header is damage."""

    @abstractmethod
    def unpack(self, key: bytes, value: memoryview) -> Header:
        """Decodes the header of a page. Raises RecordError if it is invalid."""

    @abstractmethod
    def read(self, page: Incoming) -> ReadReport:
        """Reads a page into its frames and verifies it there. Raises DoubtError if the environment is damaged."""

    @abstractmethod
    def store_together(self, pages: Sequence[Outgoing], readers: ReaderCount) -> None:
        """Stores all of these pages, or fails. Raises lmdb.Error, OSError, TierError."""

    @abstractmethod
    def delete(self, txn: Transaction, key: bytes) -> None:
        """Deletes all that belongs to a page. Ignores unknown keys. Raises lmdb.Error."""

    @abstractmethod
    def can_drop(self, keys: Sequence[bytes]) -> bool:
        """Returns whether the file system has room for dropping these pages. Raises lmdb.Error."""

    @abstractmethod
    def entry_count(self) -> EntryCount:
        """Returns what checks a listing."""

    @abstractmethod
    def reserve(self) -> None:
        """Allocates what drops need on a full file system. A full file system may give it later."""

    @abstractmethod
    def fetch_heads(self, header: Header) -> None:
        """Starts reading what dropping the page will touch."""

    @property
    def note(self) -> str:
        """What an administrator should know of the files, "" if nothing."""
        return ""

    @property
    def file_bytes(self) -> int:
        """The length of its files."""
        return sum((self.folder / name).stat().st_size for name in (file_system.DATA, file_system.LOCK))

    @property
    def file_pages(self) -> int:
        """The number of pages in LMDB's file, in use or not."""
        last: int = self._env.info()["last_pgno"]
        return last + 1

    @property
    def page_count(self) -> int:
        """The number of records of pages, as LMDB counts them."""
        with self.reading() as txn:
            count: int = txn.stat(self.pages)["entries"]
        return count

    def take_listed(self) -> list[StoredPages] | None:
        """Returns its pages as the opening found them, once; None if it did not list them, or they have changed."""
        return None

    @property
    def spaces(self) -> dict[int, Space]:
        """The namespaces by their numbers in this environment."""
        return {number: space for space, number in self._spaces.copy().items()}

    def reading(self) -> Transaction:
        """Returns a read transaction: pages that it sees are not reused while it is open."""
        return self._env.begin(buffers=True)

    def listing(self) -> Listing:
        """Returns a read transaction whose results may outlive it."""
        return self._env.begin()

    @contextlib.contextmanager
    def changing(self) -> Iterator[Transaction]:
        """Runs a write transaction that is committed at the end, and leaves no trace if anything fails.

        Yields:
            The transaction.

        Raises:
            lmdb.Error: LMDB failed, or its count of entries changed since the last transaction.
            TierError: The file was changed by something else.
            OSError: The file is gone.
        """
        # A cut or replaced file is noticed before LMDB writes to it, and a wrong count before pages rely on it.
        with self._one_changes:
            self._insist()
            try:
                with self._env.begin(write=True, buffers=True) as txn:
                    point("store.begun")
                    self._insist_on_count(txn)
                    yield txn
                    point("store.changed")
                    entries = txn.stat(self.counted)["entries"]
                # Reads see the change from here on, and it survives the death of the process; a power loss may undo it
                # until the next sync. What is known in memory follows only now: a failed transaction leaves no trace.
                point("store.committed")
                self._committed()
                self._lengthen()
                self._spaces |= self._new_spaces
                self.entries = entries
                point("store.lengthened")
            finally:
                self._new_spaces = {}
                self._aborted()

    @abstractmethod
    def _committed(self) -> None:
        """Called right after a commit, while other writers wait."""

    @abstractmethod
    def _aborted(self) -> None:
        """Called after a transaction has ended in whichever way."""

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
        """Raises CorruptedError if the count of entries changed: the free room, or what is listed, follows from it."""
        there = txn.stat(self.counted)["entries"]
        if there != self.entries:
            raise lmdb.CorruptedError(f"it counts {there} {self.COUNTED.decode()} instead of {self.entries}")

    def changed(self) -> str:
        """Returns how the file was changed by something else since it was opened, or "".

        Raises OSError if it is gone.
        """
        if self._deleted:
            return self._deleted
        return file_system.changed(self._file, self.folder / file_system.DATA, self._length)

    def number_of(self, txn: Transaction, space: Space) -> int:
        """Returns the namespace's number in this environment, assigning one if it is new."""
        number = self._spaces.get(space, self._new_spaces.get(space))
        if number is None:
            number = max((*self._spaces.values(), *self._new_spaces.values()), default=-1) + 1
            txn.put(file_format.pack_number(number), msgspec.msgpack.encode(space), db=self._names)
            self._new_spaces[space] = number
        return number

    def age(self) -> None:
        """Commits until the pages that were freed are reusable. Raises lmdb.Error."""
        for content in (b"\0", b"\1"):
            with self.changing() as txn:
                txn.put(b"turn", content, db=self._notes)

    def sync(self) -> None:
        """Makes everything that was committed durable. Raises lmdb.Error, OSError."""
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
            (self.folder / file_system.DATA).unlink()
        return self._deleted

    def close(self) -> None:
        """Closes the environment. May be called again."""
        self._undo.close()
