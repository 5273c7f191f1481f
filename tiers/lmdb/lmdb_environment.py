"""An environment of the lmdb store: each frame is a value of LMDB, and a header names where the frames lie."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import ClassVar

from pagetier.tiers.base import Incoming, Outgoing
from pagetier.tiers.capacity import PAGE, LmdbShape, StoreName
from pagetier.tiers.disk import file_format, file_system, reader
from pagetier.tiers.disk.environment import Environment
from pagetier.tiers.disk.file_format import Header, RecordError
from pagetier.tiers.disk.read_priority import ReaderCount
from pagetier.tiers.disk.reports import ReadReport, Transaction
from pagetier.tiers.lmdb import free_space, resize, values
from pagetier.tiers.lmdb.count import FrameCount
from pagetier.tiers.lmdb.frame_reader import Reader
from pagetier.tiers.lmdb.page_cache import Writeback


class LmdbEnvironment(Environment):
    """An environment whose database `frames` holds the frames. LMDB counts them."""

    STORE: ClassVar[StoreName] = "lmdb"
    COUNTED: ClassVar[bytes] = b"frames"
    shape: LmdbShape

    def _open_frames(self, undo: contextlib.ExitStack) -> None:
        del undo
        self.frames = self.counted
        self.writeback = Writeback(self._file, self.shape.stride)
        self.reader = Reader(self._file, self.shape.frame_bytes, self.shape.stride)

    @property
    def used(self) -> int:
        """The number of frames in use."""
        return self.entries

    @property
    def largest_page(self) -> int:
        """The length of the file."""
        return self.file_pages * PAGE

    def used_pages(self) -> tuple[int, int]:
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
        with self.reading() as txn:
            header = reader.header_in(self, txn, page.key)
            if header is None or reader.is_other(header, page):
                return reader.ABSENT
            whole = self.reader.read(header.runs, page.frames)
        return reader.verified(page, header, whole=whole)

    def store_together(self, pages: Sequence[Outgoing], readers: ReaderCount) -> None:
        """Stores pages in one transaction. Raises FullError, lmdb.Error."""
        values.store_together(self, pages, readers)

    def delete(self, txn: Transaction, key: bytes) -> None:
        """Deletes header and frames. Raises lmdb.Error."""
        values.delete(self, txn, key)

    def can_drop(self, keys: Sequence[bytes]) -> bool:
        """Returns whether the file system has room for dropping these pages. Raises lmdb.Error."""
        return free_space.can_drop(self, len(keys), values.frames_of_keys(self, keys))

    def tally(self) -> FrameCount:
        """Compares the count of frames with what the headers name."""
        return FrameCount(self.shape.frame_bytes)

    def reserve(self) -> None:
        """Allocates the reserve of an environment that was just opened."""
        free_space.reserve(self)

    def needs_fitting(self) -> bool:
        """Returns whether more is stored than fits, or the file is longer than its share of the cap."""
        return resize.is_needed(self)

    def fit(self) -> str:
        """Drops the coldest pages, then copies the file. Returns why it is still too long, or ""."""
        return resize.shrink(self)

    def fetch_heads(self, header: Header) -> None:
        """Starts reading the first pages of the frames, which freeing them will touch."""
        for offset in self.reader.heads(header.runs):
            file_system.prefetch(self._file, offset, PAGE)

    def _committed(self) -> None:
        self.writeback.committed()

    def _aborted(self) -> None:
        self.writeback.aborted()
