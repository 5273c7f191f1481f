"""Makes the files store fit: wrong records and the coldest pages leave, pages move, and files are shortened."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence

import lmdb
import msgspec

from pagetier.shm.failpoints import point
from pagetier.shm.units import counted
from pagetier.tiers.base import DoubtError
from pagetier.tiers.disk import file_system, reader
from pagetier.tiers.disk.file_format import Header
from pagetier.tiers.disk.resize import EnvironmentResize
from pagetier.tiers.frame_files.files_environment import FilesEnvironment, NoSlotError


class FilesResize(EnvironmentResize[FilesEnvironment]):
    """Empties the slots beyond the capacity, then cuts them off."""

    @property
    def lost(self) -> str:
        """Which pages it drops because a file lacks their bytes, "" if none."""
        environment = self.environment
        if not environment.beyond:
            return ""
        pages = counted(environment.beyond, "page")
        return f"{pages} dropped, because {environment.files.last} is missing or was truncated"

    def is_needed(self) -> bool:
        """Returns whether records must be dropped, more is stored than fits, or files are too long."""
        environment, capacity = self.environment, self.environment.shape.capacity
        too_much = environment.used > capacity or environment.files.slots > capacity
        return bool(environment.wrong) or too_much or self.has_long_data

    def run(self) -> str:
        """Makes pages and files fit. Raises lmdb.Error, OSError, DoubtError."""
        environment = self.environment
        # Wrong records leave first: they name slots of other pages, or slots that the files do not have.
        self.drop(environment.wrong, environment.shape.pages_per_transaction)
        self.drop_coldest()
        if environment.files.slots > environment.shape.capacity:
            self._move_pages()
            self._sync_moved()  # after a power loss no record names what is cut off
            point("shrinking.moved")
            environment.files.shorten(environment.shape.capacity)
        if self.has_long_data:
            self._compact()
        return ""

    def _sync_moved(self) -> None:
        """Raises DoubtError: after a failed sync the page cache may have what the disk does not have."""
        try:
            self.environment.sync()
        except (OSError, lmdb.Error) as error:
            folder = self.environment.folder
            raise DoubtError(f"{folder} could not be synced ({error}): the next disk worker verifies it") from error

    def _move_pages(self) -> None:
        """Moves pages from slots beyond the capacity to free ones; one that cannot be moved is dropped."""
        environment = self.environment
        for key, header in list(self._beyond()):
            # The bytes are at their new place before the record names it, as in every write.
            moved = self._moved(header)
            with environment.changing() as txn:
                if moved is None:
                    environment.delete(txn, key)
                else:
                    environment.put(txn, key, moved)

    def _beyond(self) -> Iterator[tuple[bytes, Header]]:
        environment = self.environment
        for batch in reader.listed(environment):
            keys = [page.key for page in batch]
            for key, header in zip(keys, reader.headers(environment, keys), strict=True):
                if header and any(
                    extent.page + extent.frames > environment.shape.capacity for extent in header.extents
                ):
                    yield key, header

    def _moved(self, header: Header) -> Header | None:
        """Writes a page to free slots. Returns None if it cannot be read, or there are too few. Raises OSError."""
        environment, frame_bytes = self.environment, self.environment.shape.frame_bytes
        count = sum(extent.frames for extent in header.extents)
        with memoryview(mmap.mmap(-1, count * frame_bytes)) as memory:
            frames = [memory[at : at + frame_bytes] for at in range(0, len(memory), frame_bytes)]
            if not self._read(header, frames):
                return None
            try:
                batch = environment.take([count])
            except NoSlotError:
                return None
            try:
                environment.files.write(batch.extents, frames, _do_not_wait)
            except OSError:  # it says nothing about what is stored
                environment.give_back(batch)
                raise
            for frame in frames:
                frame.release()
        (write,) = batch.writes
        return msgspec.structs.replace(header, extents=write.extents, serial=write.serial)

    def _read(self, header: Header, frames: Sequence[memoryview]) -> bool:
        try:
            return self.environment.files.read(header.extents, frames)
        except OSError:
            return False

    def _compact(self) -> None:
        """Replaces LMDB's file by a copy without what is free in it; the copy is synced before it takes the name."""
        environment = self.environment
        beside = environment.folder.with_name(environment.folder.name + file_system.COPY)
        file_system.remove_environment(beside)
        beside.mkdir(mode=0o700)
        try:
            environment.compact_records(beside)
            _sync(beside / file_system.DATA)
            point("shrinking.copied")
            (beside / file_system.DATA).rename(environment.folder / file_system.DATA)
            point("shrinking.renamed")
            file_system.sync_folder(environment.folder)
        finally:
            file_system.remove_environment(beside)


def _sync(path: os.PathLike[str]) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _do_not_wait() -> None:
    """Lets a write go on: while a store is opened, no reads run that it would have to give way to."""
