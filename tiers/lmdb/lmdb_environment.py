"""An environment of the lmdb store: each frame is a value of LMDB, and a header names where the frames lie."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import ClassVar

import lmdb
import msgspec

from pagetier.tiers.base import Incoming, Outgoing
from pagetier.tiers.capacity import PAGE, LmdbShape, StoreName
from pagetier.tiers.disk import file_format, file_system, reader
from pagetier.tiers.disk.environment import Environment, ReadReport, Transaction
from pagetier.tiers.disk.file_format import Header, RecordError
from pagetier.tiers.disk.read_priority import Patience, ReaderCount
from pagetier.tiers.disk.writer import FullError
from pagetier.tiers.lmdb import free_space
from pagetier.tiers.lmdb.count import FrameCount
from pagetier.tiers.lmdb.frame_reader import FrameReader, page_after
from pagetier.tiers.lmdb.page_cache import Writeback
from pagetier.tiers.page_checksum import page_checksum


class LmdbEnvironment(Environment):
    """An environment whose database `frames` holds the frames. LMDB counts them."""

    STORE: ClassVar[StoreName] = "lmdb"
    COUNTED: ClassVar[bytes] = b"frames"
    shape: LmdbShape

    def _open_frames(self, undo: contextlib.ExitStack) -> None:
        del undo
        self.frames = self.counted
        self.writeback = Writeback(self._file, self.shape.stride)
        self.reader = FrameReader(self._file, self.shape.frame_bytes, self.shape.stride)

    @property
    def used(self) -> int:
        """The number of frames in use."""
        return self.entries

    @property
    def largest_page(self) -> int:
        """The length of the file."""
        return self.file_pages * PAGE

    def _used_pages(self) -> tuple[int, int]:
        """Returns the pages used by trees and by frames. The pages of the free lists are not counted."""
        with self.reading() as txn:
            stats = [self._env.stat(), *map(txn.stat, (self.frames, self.pages, self._names, self._notes))]
        trees = sum(one["branch_pages"] + one["leaf_pages"] for one in stats)
        return trees, sum(one["overflow_pages"] for one in stats)

    def unpack(self, key: bytes, value: memoryview) -> Header:
        """Decodes a header. Raises RecordError also if it names frames past the end of the file."""
        del key
        header = file_format.unpack_header(value)
        if not file_format.fits(header, self.shape.stride, self.file_pages):
            raise RecordError("a header names frames past the end of the file")
        return header

    def read(self, page: Incoming) -> ReadReport:
        """Reads inside a transaction, so that what it reads is not reused. Raises lmdb.Error, OSError."""
        # The open transaction keeps LMDB from reusing the pages of the file that the header names.
        with self.reading() as txn:
            header = reader.header_in(self, txn, page.key)
            if header is None or reader.is_other(header, page):
                return reader.ABSENT
            whole = self.reader.read(header.extents, page.frames)
        return reader.verified(page, header, "" if whole else reader.TOO_SHORT)

    def store_together(self, pages: Sequence[Outgoing], readers: ReaderCount) -> None:
        """Stores pages in one transaction. Raises FullError, lmdb.Error."""
        if not self._can_store(len(pages), sum(len(page.frames) for page in pages)):
            raise FullError(self, self.blocks.refusal)
        # The checksums are computed before the transaction begins, in which other writers of this environment wait.
        sums = [page_checksum(page.key, page.size, page.frames) for page in pages]
        patience = Patience(readers)
        with self.changing() as txn:
            for page, checksum in zip(pages, sums, strict=True):
                number = self.number_of(txn, page.space)
                header = Header(number, page.size, page.stamp, checksum, (), page.history)
                self.put(txn, page, header, patience)

    def put(self, txn: Transaction, page: Outgoing, header: Header, patience: Patience) -> None:
        """Stores a page in place of what the key had. The header's extents are filled in here."""
        self.delete(txn, page.key)
        cursor = txn.cursor(self.frames)
        places = []
        for number, frame in enumerate(page.frames):
            cursor.put(file_format.frame_key(page.key, number), frame)
            places.append(page_after(cursor.key()))
            patience.give_way()
        extents = file_format.extents_of(places, self.shape.stride)
        self.writeback.wrote(extents)
        txn.put(page.key, file_format.pack_header(msgspec.structs.replace(header, extents=extents)), db=self.pages)

    def delete(self, txn: Transaction, key: bytes) -> None:
        """Deletes header and frames, however many there are, since the header may be damaged. Ignores unknown keys.

        Raises:
            lmdb.Error: LMDB failed.
            lmdb.CorruptedError: LMDB met damage in a cursor.
        """
        if not txn.delete(key, db=self.pages):
            return
        try:
            _delete_frames(txn.cursor(self.frames), key)
        except SystemError as error:  # py-lmdb raises it for LMDB's errors in a cursor
            if isinstance(error.__cause__, lmdb.MapFullError | lmdb.DiskError):
                raise error.__cause__ from error
            raise lmdb.CorruptedError(str(error.__cause__ or error)) from error

    def _can_store(self, keys: int, frames: int) -> bool:
        """Returns whether there is room for such a transaction and for drops after it. Raises lmdb.Error."""
        trees, values = self._used_pages()
        return self._make_room(free_space.pages_to_store(self.shape, keys, frames, trees), trees + values)

    def can_drop(self, keys: Sequence[bytes]) -> bool:
        """Returns whether there is room for dropping these pages and for reusing what is freed. Raises lmdb.Error."""
        headers = filter(None, reader.headers(self, keys))
        frames = sum(extent.frames for header in headers for extent in header.extents)
        trees, values = self._used_pages()
        return self._make_room(free_space.pages_to_drop(self.shape, len(keys), frames, trees), trees + values)

    def _make_room(self, needed: int, used: int) -> bool:
        """Returns whether there is room past the end of the file or inside it; makes freed pages there reusable."""
        if self.blocks.allocate_to((self.file_pages + needed) * PAGE):
            return True
        if max(self.file_pages, self.blocks.end // PAGE) - used < needed:
            return False
        self.age()
        return True

    def entry_count(self) -> FrameCount:
        """Compares the count of frames with what the headers name."""
        return FrameCount(self.shape.frame_bytes)

    def reserve(self) -> None:
        """Allocates the reserve of an environment that was just opened. A full file system may give it later."""
        self.blocks.allocate_to((self.file_pages + free_space.pages_for_drops(self.shape)) * PAGE)

    def fetch_heads(self, header: Header) -> None:
        """Starts reading the first pages of the frames, which freeing them will touch."""
        for offset in self.reader.heads(header.extents):
            file_system.prefetch(self._file, offset, PAGE)

    def _committed(self) -> None:
        self.writeback.committed()

    def _aborted(self) -> None:
        self.writeback.aborted()


def _delete_frames(cursor: lmdb.Cursor[memoryview], key: bytes) -> None:
    more = cursor.set_range(key)
    while more and cursor.key()[: len(key)] == key:
        more = cursor.delete() and bool(cursor.key())
