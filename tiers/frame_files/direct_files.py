"""The files of an environment that hold frames: allocated in steps, written and read past the page cache."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from pagetier.shm.failpoints import point
from pagetier.tiers.capacity import PAGE
from pagetier.tiers.disk import blocks, file_system
from pagetier.tiers.disk.file_format import FrameExtent

FILE_BYTES: Final = 64 << 30
_STEP: Final = 1 << 30
_STEP_PART: Final = 16  # of what all files may take: a step of a small tier
_IOVEC: Final = 1024  # the pieces that the kernel takes in one call
_CALL_BYTES: Final = 8 << 20  # written by one call, between which reads go first
_Call: TypeAlias = Callable[[int, Sequence[memoryview], int], int]
_WHOLE: Final = 0  # the mode of an allocation that changes the length


class DirectFiles:
    """The files `frames.0`, `frames.1` and so on, as one row of slots. Any thread may read; one at a time writes.

    Args:
        folder: The environment's folder.
        frame_bytes: The size of a slot.
        limit: The number of slots that there may be.

    Attributes:
        refusal: The error number of the latest allocation if it failed, otherwise 0.
        buffered: Whether the file system refuses O_DIRECT, so that frames go through the page cache.
    """

    def __init__(self, folder: Path, frame_bytes: int, limit: int) -> None:
        self._folder = folder
        self._frame_bytes = frame_bytes
        self._slots_per_file = FILE_BYTES // frame_bytes
        self._limit = limit
        self._step = max(1, min(_STEP // frame_bytes, limit // _STEP_PART))
        self._descriptors: list[int] = []
        self._lengths: list[int] = []  # of each file, at least
        self._unsynced: set[int] = set()
        self.buffered, self.refusal = False, 0
        try:
            for number in range(_count(folder)):
                self._open(number)
        except OSError:
            self.close()
            raise

    @property
    def slots(self) -> int:
        """The number of slots that the files have."""
        if not self._lengths:
            return 0
        return (len(self._lengths) - 1) * self._slots_per_file + self._lengths[-1] // self._frame_bytes

    @property
    def last(self) -> Path:
        """The file that has the last slot, or would have the first one."""
        return self._path(max(0, len(self._lengths) - 1))

    @property
    def file_bytes(self) -> int:
        """The length of all files. Raises OSError."""
        return sum(os.fstat(descriptor).st_size for descriptor in self._descriptors)

    def _path(self, number: int) -> Path:
        return self._folder / f"{file_system.FRAMES}{number}"

    def _open(self, number: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self._path(number), flags | os.O_DIRECT, 0o600)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            descriptor = os.open(self._path(number), flags, 0o600)
            self.buffered = True
        self._lengths.append(os.fstat(descriptor).st_size)
        self._unsynced.add(number)  # an earlier process may have died before its sync
        self._descriptors.append(descriptor)

    def grow(self, missing: int) -> bool:
        """Allocates at least `missing` more slots. Returns False if the limit or the file system has fewer."""
        there, self.refusal = self.slots, 0
        if there + missing > self._limit:
            return False
        return self._grow_to(min(self._limit, there + max(missing, self._step))) or self._grow_to(there + missing)

    def _grow_to(self, end: int) -> bool:
        while (there := self.slots) < end:
            if there == len(self._lengths) * self._slots_per_file:
                self._open(len(self._lengths))
                file_system.sync_folder(self._folder)
            last = len(self._lengths) - 1
            if not self._lengthen(last, min(end - last * self._slots_per_file, self._slots_per_file)):
                return False
        return True

    def _lengthen(self, number: int, slots: int) -> bool:
        there, length = self._lengths[number], slots * self._frame_bytes
        refusal = blocks.allocate(self._descriptors[number], there, length - there, _WHOLE)
        if refusal and refusal not in blocks.UNSUPPORTED:
            self.refusal = refusal
            return False
        if refusal:
            os.ftruncate(self._descriptors[number], length)
        self._lengths[number] = length
        self._unsynced.add(number)
        return True

    def shorten(self, end: int) -> None:
        """Gives back all slots from `end` on. The caller guarantees that no record names them. Raises OSError."""
        last = max(0, end - 1) // self._slots_per_file
        for number in reversed(range(last + 1, len(self._lengths))):
            self._path(number).unlink()
            os.close(self._descriptors.pop())
            self._lengths.pop()
            self._unsynced.discard(number)
        length = (end - last * self._slots_per_file) * self._frame_bytes
        if self._lengths and self._lengths[last] > length:
            os.ftruncate(self._descriptors[last], length)
            self._lengths[last] = length
            self._unsynced.add(last)
        file_system.sync_folder(self._folder)

    def write(self, extents: Sequence[FrameExtent], frames: Sequence[memoryview], between: Callable[[], None]) -> None:
        """Writes frames to slots, and calls `between` before each call to the system. Raises OSError."""
        for number, at, pieces in self._calls(extents, frames):
            between()
            self._unsynced.add(number)
            if not self._through(number, os.pwritev, pieces, at):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            point("frames.written")

    def read(self, extents: Sequence[FrameExtent], frames: Sequence[memoryview]) -> bool:
        """Reads slots into frames. Returns whether the files had all of them. Raises OSError."""
        if sum(extent.frames for extent in extents) != len(frames):
            return False
        return all(
            number < len(self._descriptors) and self._through(number, os.preadv, pieces, at)
            for number, at, pieces in self._calls(extents, frames)
        )

    def _calls(
        self, extents: Sequence[FrameExtent], frames: Sequence[memoryview]
    ) -> Iterator[tuple[int, int, Sequence[memoryview]]]:
        """Yields file, offset and frames of each call to the system."""
        most = max(1, min(_IOVEC, _CALL_BYTES // self._frame_bytes))
        done = 0
        for extent in extents:
            slot, left = extent.page, extent.frames
            while left:
                number, first = divmod(slot, self._slots_per_file)
                count = min(left, most, self._slots_per_file - first)
                yield number, first * self._frame_bytes, frames[done : done + count]
                slot, left, done = slot + count, left - count, done + count

    def _through(self, number: int, call: _Call, pieces: Sequence[memoryview], at: int) -> bool:
        """Calls until all pieces are done. Returns False if a call does nothing more. Raises OSError."""
        while pieces:
            try:
                done = call(self._descriptors[number], pieces, at)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._stop_direct(number):
                    raise
                continue
            done -= done % PAGE  # direct access needs whole blocks
            if not done:
                return False
            at += done
            pieces = file_system.remaining(pieces, done)
        return True

    def _stop_direct(self, number: int) -> bool:
        """Lets a file be used through the page cache from now on. Returns False if it was already."""
        flags = fcntl.fcntl(self._descriptors[number], fcntl.F_GETFL)
        fcntl.fcntl(self._descriptors[number], fcntl.F_SETFL, flags & ~os.O_DIRECT)
        self.buffered = True
        return bool(flags & os.O_DIRECT)

    def sync(self) -> None:
        """Makes durable what was written before the call. Raises OSError."""
        for number in sorted(self._unsynced):
            self._unsynced.discard(number)
            try:
                os.fdatasync(self._descriptors[number])
            except OSError:
                self._unsynced.add(number)
                raise
            point("frames.synced")

    def changed(self) -> str:
        """Returns how a file was changed by something else since it was opened, or "". Raises OSError if it is gone."""
        there = list(zip(self._descriptors, self._lengths, strict=False))
        whys = (
            file_system.changed(descriptor, self._path(at), length) for at, (descriptor, length) in enumerate(there)
        )
        return next(filter(None, whys), "")

    def close(self) -> None:
        """Closes all files."""
        for descriptor in self._descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._descriptors = []


def _count(folder: Path) -> int:
    """Returns one more than the largest number of a file: a missing one in between is created empty."""
    paths = file_system.frame_files(folder)
    return int(paths[-1].name.removeprefix(file_system.FRAMES)) + 1 if paths else 0
