"""Shrinks the lmdb store's file to a lower cap, by copying it if there is room for the copy."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from typing import Final

import msgspec

from pagetier.shm.failpoints import point
from pagetier.shm.protocol import Space
from pagetier.tiers.base import Outgoing
from pagetier.tiers.capacity import PAGE
from pagetier.tiers.disk import file_system, reader
from pagetier.tiers.disk.file_format import Header, frames_of
from pagetier.tiers.disk.read_priority import Patience, ReaderCount
from pagetier.tiers.disk.resize import EnvironmentResize
from pagetier.tiers.lmdb.lmdb_environment import LmdbEnvironment

_FOR_TREES: Final = 1.1
_NO_READERS: Final = Patience(ReaderCount(), 0)  # no reads run while a store is opened


class LmdbResize(EnvironmentResize[LmdbEnvironment]):
    """Drops the coldest pages, then copies the file, since LMDB never gives a page of it back."""

    def is_needed(self) -> bool:
        """Returns whether more is stored than fits, or the file is longer than its share of the cap."""
        return self.environment.used > self.environment.shape.capacity or self.has_long_data

    def run(self) -> str:
        """Shrinks the environment, and closes it if its file was replaced by a copy. Raises lmdb.Error, OSError.

        Returns:
            Why the file is still too long, or "".
        """
        self.drop_coldest()
        if not self.has_long_data:
            return ""
        if lacking := self._lacking():
            return f"copying it needs {lacking} more free bytes"
        self._copy()
        return ""

    def _lacking(self) -> int:
        environment = self.environment
        needed = int(environment.used * environment.shape.stride * PAGE * _FOR_TREES) + (1 << 20)
        return max(0, needed - shutil.disk_usage(environment.folder).free)

    def _copy(self) -> None:
        environment = self.environment
        beside = environment.folder.with_name(environment.folder.name + file_system.COPY)
        file_system.remove_environment(beside)
        try:
            # The copy takes the name only after it is on the disk: until then a crash leaves the old file and a copy
            # that the next opening removes, and from then on the new file.
            with contextlib.closing(LmdbEnvironment(beside, environment.shape, environment.about)) as fresh:
                _copy_pages(environment, fresh)
                fresh.sync()
            point("shrinking.copied")
            (beside / file_system.DATA).rename(environment.folder / file_system.DATA)
            point("shrinking.renamed")
            file_system.sync_folder(environment.folder)
            environment.close()
        finally:
            file_system.remove_environment(beside)


def _copy_pages(source: LmdbEnvironment, target: LmdbEnvironment) -> None:
    memory: list[memoryview] = []
    for batch in reader.listed(source):
        spaces = source.spaces
        for page in batch:
            header = _read_unverified(source, page.key, memory)
            if header is not None and header.space in spaces:
                _put(target, page.key, header, spaces[header.space], memory)


def _read_unverified(source: LmdbEnvironment, key: bytes, memory: list[memoryview]) -> Header | None:
    """Reads a page into `memory`, which grows as needed, and returns its header; None if it cannot be read."""
    # A damaged page is copied with its damage: the next read finds it, and the page is dropped.
    with source.reading() as txn:
        header = reader.header_in(source, txn, key)
        if header is None or header == reader.NONSENSE:
            return None
        count = sum(extent.frames for extent in header.extents)
        while len(memory) < count:
            memory.append(memoryview(bytearray(source.shape.frame_bytes)))
        return header if source.reader.read(header.extents, memory[:count]) else None


def _put(target: LmdbEnvironment, key: bytes, header: Header, space: Space, memory: Sequence[memoryview]) -> None:
    frames = memory[: frames_of(header.size, target.shape.frame_bytes)]
    page = Outgoing(key, space, header.size, header.stamp, frames)
    with target.changing() as txn:
        number = target.number_of(txn, space)
        target.put(txn, page, msgspec.structs.replace(header, space=number), _NO_READERS)
