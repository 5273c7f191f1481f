"""An environment of the files store: LMDB has a record for each page, and files beside it have the frames."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import ClassVar, Final

import lmdb
import msgspec

from pagetier.shm.failpoints import point
from pagetier.tiers.base import Incoming, Outgoing, ReadOutcome, ReadResult, StoredPages
from pagetier.tiers.capacity import FilesShape, StoreName
from pagetier.tiers.disk import reader
from pagetier.tiers.disk.environment import Environment, ReadReport, Transaction
from pagetier.tiers.disk.file_format import FrameExtent, Header, RecordError, extents_of, frames_of
from pagetier.tiers.disk.read_priority import Patience, ReaderCount
from pagetier.tiers.disk.writer import FullError
from pagetier.tiers.frame_files.count import RecordCount
from pagetier.tiers.frame_files.direct_files import DirectFiles
from pagetier.tiers.frame_files.records import pack_record, unpack_record
from pagetier.tiers.frame_files.slot_bytes import SlotBytes
from pagetier.tiers.frame_files.slot_owners import find_owners
from pagetier.tiers.frame_files.slot_table import SlotTable
from pagetier.tiers.page_checksum import page_checksum

READERS_S: Final = 5.0
"""How long a write waits for the readers of slots that it needs."""
_TRIES: Final = 8  # a page that is replaced again and again while it is looked up


class NoSlotError(lmdb.MapFullError):
    """There are not enough free slots for a write."""

    def __init__(self) -> None:
        super().__init__("there are not enough free slots")


class SlotWrite(msgspec.Struct, frozen=True):
    """The slots that one write owns."""

    serial: int
    extents: tuple[FrameExtent, ...]


class PlacedBatch(msgspec.Struct):
    """The slots of several pages, and the extents of all of them. `recorded`: a commit has made them reachable."""

    writes: list[SlotWrite]
    extents: tuple[FrameExtent, ...]
    recorded: bool = False


class FilesEnvironment(Environment):
    """An environment whose frames lie in files. The order of every change keeps slots from being reused too early."""

    STORE: ClassVar[StoreName] = "files"
    COUNTED: ClassVar[bytes] = b"pages"
    shape: FilesShape

    def _open_frames(self, undo: contextlib.ExitStack) -> None:
        self.files = DirectFiles(self.folder, self.shape.frame_bytes, self.shape.capacity)
        undo.callback(self.files.close)
        self._capacity = max(self.shape.capacity, self.files.slots)
        found = find_owners(self, self.files.slots)
        self._listed: list[StoredPages] | None = found.pages  # until a transaction changes them
        self.slots = SlotTable(found.owners)
        self.wrong = found.wrong
        self.beyond = found.beyond
        self._next_serial = found.next_serial
        # Of the transaction that runs:
        self._deleted_pages: list[Header] = []
        self._batch: PlacedBatch | None = None

    @property
    def used(self) -> int:
        """The number of frames in use."""
        return self.slots.used

    @property
    def largest_page(self) -> int:
        """The length of all slots that there may be."""
        return self._capacity * self.shape.frame_bytes

    @property
    def file_bytes(self) -> int:
        """The length of its files."""
        return super().file_bytes + self.files.file_bytes

    @property
    def note(self) -> str:
        """What an administrator should know of the files, "" if nothing."""
        refused = f"the file system of {self.folder.parent} refuses O_DIRECT: pages go through the page cache"
        return refused if self.files.buffered else ""

    def unpack(self, key: bytes, value: memoryview) -> Header:
        """Decodes a record. Raises RecordError also if its slots cannot be those of such a page."""
        header = unpack_record(key, value)
        frames = sum(extent.frames for extent in header.extents)
        beyond = any(extent.page + extent.frames > self.slots.length for extent in header.extents)
        if beyond or frames != frames_of(header.stored_bytes, self.shape.frame_bytes):
            raise RecordError("a record names other slots than the page needs")
        return header

    def read(self, page: Incoming) -> ReadReport:
        """Reads slots that cannot be reused until it ends. Raises lmdb.Error, OSError."""
        header = None
        for _ in range(_TRIES):
            with self.reading() as txn:
                header = reader.header_in(self, txn, page.key)
            if header is None or reader.is_other(header, page):
                return reader.ABSENT
            if header == reader.NONSENSE:
                break
            # The transaction has ended, so that reading the frames does not keep freed pages of LMDB from being reused.
            # The record may have been deleted since: then another write owns the slots, or none does, and the lookup is
            # repeated. Once the slots are marked as being read they are not reused until end_reading().
            if self.slots.begin_reading(header.serial, header.extents):
                try:
                    wrong = self.fetch(header, page)
                finally:
                    self.slots.end_reading(header.serial)
                return reader.verified(page, header, wrong)
        return ReadReport(ReadResult(ReadOutcome.DAMAGED, "its slots belong to another page"), header)

    def fetch(self, header: Header, page: Incoming) -> str:
        """Reads a page into its frames. Returns why that is impossible, or "". Raises OSError."""
        return self.fetch_slots(header, page.frames)

    def fetch_slots(self, header: Header, slots: Sequence[memoryview]) -> str:
        """Reads the slots of a page. Returns why that is impossible, or "". Raises OSError."""
        return "" if self.files.read(header.extents, slots) else reader.TOO_SHORT

    @contextlib.contextmanager
    def packed(self, pages: Sequence[Outgoing], readers: ReaderCount) -> Iterator[list[SlotBytes]]:
        """Yields what the slots of pages will have, as long as the block runs."""
        del readers
        yield [SlotBytes(page.frames) for page in pages]

    def store_together(self, pages: Sequence[Outgoing], readers: ReaderCount) -> None:
        """Writes the bytes of pages, then their records in one transaction. Raises lmdb.Error, TierError."""
        # 1. Allocate: the records' blocks come first, so that a full file system is found before anything is written.
        if not self.blocks.allocate_to(self.shape.map_bytes):
            raise FullError(self, self.blocks.refusal)
        # 2. Take slots that no record names. No read reaches them before the commit, so a crash leaves only free slots
        # with other bytes in them.
        sums = [page_checksum(page.key, page.size, page.frames) for page in pages]
        with self.packed(pages, readers) as packed:
            batch = self._place(pages, [len(one.slots) for one in packed])
            try:
                # 3. Write the bytes, then commit the records that name them: a record never names bytes that were not
                # written, and a process that dies in between has stored nothing.
                self.write_frames(batch.extents, list(chain.from_iterable(one.slots for one in packed)), readers)
                with self.changing() as txn:
                    self._batch = batch
                    for page, checksum, write, one in zip(pages, sums, batch.writes, packed, strict=True):
                        self.put(txn, page.key, self._header(txn, page, checksum, write, one.coded))
            except BaseException:
                # 4. A failure after the commit must not free the slots: the records name them already.
                if not batch.recorded:
                    self.give_back(batch)
                raise

    def _header(self, txn: Transaction, page: Outgoing, checksum: bytes, write: SlotWrite, coded: int) -> Header:
        return Header(
            self.number_of(txn, page.space),
            page.size,
            page.stamp,
            checksum,
            write.extents,
            page.history,
            write.serial,
            coded,
        )

    def _place(self, pages: Sequence[Outgoing], counts: Sequence[int]) -> PlacedBatch:
        """Returns slots for pages, so many for each. Raises FullError, NoSlotError, lmdb.Error, TierError."""
        if not self._find_free(sum(counts)):
            # What is replaced may have to leave first, and what has just left may still be read.
            with self.changing() as txn:
                for page in pages:
                    self.delete(txn, page.key)
            self.slots.wait_for_readers(READERS_S)
            if not self._find_free(sum(counts)):
                full = self.files.slots < self.shape.capacity
                raise FullError(self, self.files.refusal) if full else NoSlotError
        return self.take(counts)

    def _find_free(self, count: int) -> bool:
        missing = count - self.slots.free_below(self._end)
        if missing > 0 and not self.files.grow(missing):
            return False
        self.slots.lengthen(self.files.slots)
        return True

    @property
    def _end(self) -> int:
        return min(self.files.slots, self.shape.capacity)

    def take(self, counts: Sequence[int]) -> PlacedBatch:
        """Returns slots for writes of so many slots each. Raises NoSlotError."""
        first = self._next_serial
        serials = range(first, first + len(counts))
        slots = self.slots.take(serials, counts, self._end)
        if not slots:
            raise NoSlotError
        self._next_serial += len(counts)
        left = iter(slots)
        writes = [SlotWrite(serial, extents_of(islice(left, n), 1)) for serial, n in zip(serials, counts, strict=True)]
        return PlacedBatch(writes, extents_of(slots, 1))

    def give_back(self, batch: PlacedBatch) -> None:
        """Frees the slots of writes that no record names."""
        for write in batch.writes:
            self.slots.release(write.serial, write.extents)

    def write_frames(self, extents: Sequence[FrameExtent], frames: Sequence[memoryview], readers: ReaderCount) -> None:
        """Writes bytes to slots that no record names yet. Raises lmdb.DiskError."""
        try:
            self.files.write(extents, frames, Patience(readers).give_way)
        except OSError as error:
            raise lmdb.DiskError(f"pwritev: {error.strerror or error}") from error

    def put(self, txn: Transaction, key: bytes, header: Header) -> None:
        """Puts a record in place of what the key had. Raises lmdb.Error."""
        self.delete(txn, key)
        txn.put(key, pack_record(key, header), db=self.pages)

    def delete(self, txn: Transaction, key: bytes) -> None:
        """Deletes a record. Its slots are free once that is committed. Raises lmdb.Error."""
        header = reader.header_in(self, txn, key)
        if txn.delete(key, db=self.pages) and header is not None and header != reader.NONSENSE:
            self._deleted_pages.append(header)

    def take_listed(self) -> list[StoredPages] | None:
        """Returns its pages as the opening found them, once; None if they have changed."""
        listed, self._listed = self._listed, None
        return listed

    def _committed(self) -> None:
        self._listed = None
        if self._batch is not None:
            self._batch.recorded = True
        # The slots of deleted records are free only now: before the commit a crash would bring the records back, which
        # would then name the bytes of another page.
        for header in self._deleted_pages:
            self.slots.release(header.serial, header.extents)
        point("frames.released")

    def _aborted(self) -> None:
        self._batch = None
        self._deleted_pages = []

    def fetch_heads(self, header: Header) -> None:
        """Dropping a page touches its record alone."""

    def can_drop(self, keys: Sequence[bytes]) -> bool:
        """Returns whether the blocks of all records are allocated."""
        del keys
        return self.blocks.allocate_to(self.shape.map_bytes)

    def reserve(self) -> None:
        """Allocates the blocks of all records, so that drops never need any."""
        self.blocks.allocate_to(self.shape.map_bytes)

    def entry_count(self) -> RecordCount:
        """Compares the count of records with what is listed."""
        return RecordCount()

    def compact_records(self, folder: Path) -> None:
        """Copies the records to another folder, without what was free between them. Raises lmdb.Error."""
        self._env.copy(str(folder), compact=True)

    def sync(self) -> None:
        """Syncs bytes, then records: a record that is durable names bytes that are. Raises lmdb.Error, OSError."""
        self.files.sync()
        super().sync()

    def changed(self) -> str:
        """Returns how a file was changed by something else since it was opened, or "". Raises OSError if it is gone."""
        return super().changed() or self.files.changed()
