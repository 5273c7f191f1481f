"""Objects as files in a folder: file:///mnt/nfs/pages. For a file system that all hosts mount, and for tests."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pagetier.tiers.base import TierError
from pagetier.tiers.fleet.check_host import check_folder
from pagetier.tiers.fleet.object_store import ABSENT, StoreSettings

_UNFINISHED: Final = ".unfinished"
_ABANDONED_S: Final = 3600.0


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
        return array("Q", [self._size(self._folder / name) for name in names])

    def _size(self, path: Path) -> int:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return 0

    def put(self, name: str, data: memoryview) -> bool:
        """Writes a file elsewhere and links it to its name, which fails if there is one."""
        path, unfinished = self._folder / name, self._unfinished / uuid.uuid4().hex
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            unfinished.write_bytes(data)
            os.link(unfinished, path)
        except FileExistsError:
            return False
        finally:
            unfinished.unlink(missing_ok=True)
        return True

    def get(self, name: str, into: memoryview) -> int:
        """Reads a file into the buffer."""
        try:
            with (self._folder / name).open("rb", buffering=0) as file:
                length = os.fstat(file.fileno()).st_size
                while into and (count := file.readinto(into)):
                    into = into[count:]
        except FileNotFoundError:
            return ABSENT
        return length

    def remove(self, name: str) -> None:
        """Removes the file."""
        (self._folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Does nothing."""
