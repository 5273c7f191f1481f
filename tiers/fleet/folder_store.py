"""Objects as files in a folder: file:///mnt/nfs/pages. For a file system that all hosts mount, and for tests.

A mount that is gone leaves an empty folder, in which every object is absent. The folder `.unfinished`, which the
opening creates, tells the two apart: without it a call fails, and nothing is created below the mount point.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import uuid
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from pagetier.tiers.base import TierError
from pagetier.tiers.fleet.check_host import check_folder
from pagetier.tiers.fleet.object_store import ABSENT, StoreSettings

_UNFINISHED: Final = ".unfinished"
_ABANDONED_S: Final = 3600.0
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class FolderStore:
    """A store in a folder that exists. Nothing is synced: what a power loss leaves of an object fails its checksum."""

    def __init__(self, options: StoreSettings) -> None:
        self._folder = Path(options.path)
        check_folder(self._folder)
        self._unfinished = self._folder / _UNFINISHED
        try:
            self._unfinished.mkdir(exist_ok=True)
            self._remove_abandoned()
        except OSError as error:
            raise TierError(f"{self._folder} cannot be written: {error.strerror or error}") from error

    def _remove_abandoned(self) -> None:
        """Removes what processes that died have left."""
        for path in self._unfinished.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < time.time() - _ABANDONED_S:
                    path.unlink()

    def exists(self, names: Sequence[str]) -> list[bool]:
        """Returns which files are there."""
        return [bool(length) for length in self.sizes(names)]

    def sizes(self, names: Sequence[str]) -> array[int]:
        """Returns the lengths of the files."""
        lengths = array("Q", [self._size(self._folder / name) for name in names])
        if not all(lengths):
            self._require_mount()
        return lengths

    def _require_mount(self) -> None:
        if not self._unfinished.is_dir():
            raise TierError(f"{self._folder} has lost its folder {_UNFINISHED}: mount its file system again")

    def _size(self, path: Path) -> int:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return 0

    def put(self, name: str, data: memoryview) -> bool:
        """Writes a file elsewhere and links it to its name, which fails if there is one."""
        unfinished = f"{_UNFINISHED}/{uuid.uuid4().hex}"
        with _opened(self._folder) as root:
            self._write(unfinished, data, root)
            try:
                _make_parents(name, root)
                os.link(unfinished, name, src_dir_fd=root, dst_dir_fd=root)
            except FileExistsError:
                return False
            finally:
                os.unlink(unfinished, dir_fd=root)
        return True

    def _write(self, path: str, data: memoryview, root: int) -> None:
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=root)
        except FileNotFoundError:
            self._require_mount()
            raise
        try:
            with os.fdopen(file, "wb", buffering=0) as out:
                while data:
                    data = data[out.write(data) :]
        except OSError as error:
            os.unlink(path, dir_fd=root)
            if error.errno in _FULL:
                raise TierError(f"{self._folder} is full: delete old objects, or give it more room") from error
            raise

    def get(self, name: str, into: memoryview) -> int:
        """Reads a file into the buffer."""
        try:
            with (self._folder / name).open("rb", buffering=0) as file:
                length = os.fstat(file.fileno()).st_size
                while into and (count := file.readinto(into)):
                    into = into[count:]
        except FileNotFoundError:
            self._require_mount()
            return ABSENT
        return length

    def remove(self, name: str) -> None:
        """Removes the file."""
        (self._folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Does nothing."""


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Opens a folder. What is created relative to it is in the same file system, even if it is unmounted."""
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield root
    finally:
        os.close(root)


def _make_parents(name: str, root: int) -> None:
    for parent in reversed(PurePosixPath(name).parents[:-1]):
        with contextlib.suppress(FileExistsError):
            os.mkdir(parent, dir_fd=root)
