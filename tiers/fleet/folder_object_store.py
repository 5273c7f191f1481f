"""Objects as files in a folder: file:///mnt/nfs/pages. For a file system that all hosts mount, and for tests.

A mount that is gone leaves an empty folder, in which every object is absent. The folder `.unfinished`, which the
opening creates, tells the two apart: without it a call fails, and nothing is created below the mount point.

Only a regular file is an object. Anything else by the name of one is there and has no bytes, so that it is found
damaged, removed and replaced.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
import uuid
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pagetier.tiers.base import TierError
from pagetier.tiers.fleet.check_host import check_folder
from pagetier.tiers.fleet.object_store import ABSENT, UNFINISHED, StoreSettings
from pagetier.tiers.fleet.shared_folder import OddEntryError, SharedFolder

_OWN_NAME: Final = re.compile(r"[0-9a-f]{32}")  # of a file in it
_ABANDONED_S: Final = 3600.0
_MOST_LISTED: Final = 10_000
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)  # a missing right is EACCES
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_FILE: Final = (errno.ELOOP, errno.ENXIO)  # a link, a socket


class FolderObjectStore:
    """A store in a folder that exists. Nothing is synced: what a power loss leaves of an object fails its checksum."""

    def __init__(self, options: StoreSettings) -> None:
        self._folder = Path(options.path)
        check_folder(self._folder)
        with self._opened() as folder, folder.explained():
            beside = folder.made(UNFINISHED)
            with contextlib.suppress(OSError):  # a host that may not write still reads
                _remove_abandoned(beside, _time_there(folder))

    def _opened(self) -> SharedFolder:
        try:
            return SharedFolder(self._folder)
        except FileNotFoundError as error:
            raise self._lost() from error

    def exists(self, names: Sequence[str]) -> list[bool]:
        """Returns which names are taken, by whatever it is. Raises OddEntryError if none can be looked up."""
        with self._opened() as folder:
            odd, there = list[OddEntryError](), list[bool]()
            for name in names:
                try:
                    there.append(self._status(folder, name) is not None)
                except OddEntryError as error:
                    odd.append(error)
                    there.append(False)  # put() says why, of this page alone
            if odd and len(odd) == len(names):
                raise odd[0]
            if not all(there):
                self._require_mount(folder)
            return there

    def sizes(self, names: Sequence[str]) -> array[int]:
        """Returns the lengths of the files."""
        with self._opened() as folder:
            lengths = array("Q", [self._size(folder, name) for name in names])
            if not all(lengths):
                self._require_mount(folder)
            return lengths

    def _status(self, folder: SharedFolder, name: str) -> os.stat_result | None:
        try:
            return folder.status(name)
        except FileNotFoundError:
            return None

    def _size(self, folder: SharedFolder, name: str) -> int:
        try:
            found = self._status(folder, name)
        except OddEntryError:
            return 0
        return found.st_size if found is not None and stat.S_ISREG(found.st_mode) else 0

    def _require_mount(self, folder: SharedFolder) -> None:
        try:
            folder.folder(UNFINISHED)
        except FileNotFoundError as error:
            raise self._lost() from error

    def _lost(self) -> TierError:
        return TierError(f"{self._folder} has lost its folder {UNFINISHED}: mount its file system again")

    def put(self, name: str, data: memoryview) -> bool:
        """Writes a file elsewhere and links it to its name, which fails if there is one."""
        above, _, last = name.rpartition("/")
        with self._opened() as folder, folder.explained():
            self._require_mount(folder)
            with self._written(folder, data) as unfinished:
                places = {"src_dir_fd": folder.folder(UNFINISHED), "dst_dir_fd": folder.made(above)}
                try:
                    os.link(unfinished, last, **places, follow_symlinks=False)
                except FileExistsError:
                    return False
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                    why = f"the file system of {self._folder} has no hard links: use another one, or another store"
                    raise TierError(why) from error
        return True

    @contextlib.contextmanager
    def _written(self, folder: SharedFolder, data: memoryview) -> Iterator[str]:
        """Yields the name of a file with these bytes, which is removed at the end."""
        name = uuid.uuid4().hex
        descriptor = folder.create(UNFINISHED, name)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as out:
                while data:
                    data = data[out.write(data) :]
            yield name
        except OSError as error:
            if error.errno in _FULL:
                raise TierError(f"{self._folder} is full: delete old objects, or give it more room") from error
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder.folder(UNFINISHED))

    def get(self, name: str, into: memoryview) -> int:
        """Reads a file into the buffer."""
        with self._opened() as folder:
            try:
                return _read(folder, name, into)
            except FileNotFoundError:
                self._require_mount(folder)
            except OddEntryError:
                pass
        return ABSENT

    def remove(self, name: str) -> None:
        """Removes the entry, whatever it is; a folder is moved away."""
        above, _, last = name.rpartition("/")
        with self._opened() as folder, contextlib.suppress(FileNotFoundError):
            inside = folder.folder(above)
            try:
                os.unlink(last, dir_fd=inside)
            except IsADirectoryError:
                aside = folder.folder(UNFINISHED)
                os.rename(last, uuid.uuid4().hex, src_dir_fd=inside, dst_dir_fd=aside)

    def close(self) -> None:
        """Does nothing."""


def _read(folder: SharedFolder, name: str, into: memoryview) -> int:
    """Returns the length of an object whose bytes it has read, 0 for anything but a regular file."""
    above, _, last = name.rpartition("/")
    try:
        descriptor = os.open(last, _FILE, dir_fd=folder.folder(above))
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        return 0
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return 0
        while into and (count := os.readv(descriptor, [into])):
            into = into[count:]
        return found.st_size
    finally:
        os.close(descriptor)


def _time_there(folder: SharedFolder) -> float:
    """Returns the time by the clock of the file system, since that of this host may be wrong. Raises OSError."""
    name = uuid.uuid4().hex
    descriptor = folder.create(UNFINISHED, name)
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        os.unlink(name, dir_fd=folder.folder(UNFINISHED))


def _remove_abandoned(beside: int, now: float) -> None:
    """Removes what processes that died have left. Entries of other programs stay."""
    with os.scandir(beside) as entries:
        names = [entry.name for entry in itertools.islice(entries, _MOST_LISTED) if _OWN_NAME.fullmatch(entry.name)]
    for name in names:
        with contextlib.suppress(OSError):
            found = os.stat(name, dir_fd=beside, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode) and found.st_mtime < now - _ABANDONED_S:
                os.unlink(name, dir_fd=beside)
