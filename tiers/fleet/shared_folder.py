"""A folder that other hosts and users write to, used by descriptors: no link in it is ever followed.

Whoever may write to the folder can replace any entry at any moment, so a check of a path says nothing about its next
use. Each step opens one name relative to the descriptor of the folder above it, and refuses links.

What hosts create has the folder's group, and the folder's rights for its owner and group, whatever the umask is. All
other users get rights only if the folder lets all users write to it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pagetier.tiers.base import TierError

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_FOLDER: Final = (errno.ENOTDIR, errno.ELOOP)
_NOT_ALLOWED: Final = (errno.EACCES, errno.EPERM)
_GROUP_RULE: Final = "give all hosts' users one group, chgrp the folder to it and chmod 2770"


class OddEntryError(TierError):
    """A link or a file is in place of a folder, or the folder belongs to a user who may not write to the fleet's."""


class SharedFolder:
    """The folder, open for the time of a `with` block, and the folders in it that were used.

    It is opened for each call of a store: a descriptor that stays open would keep the file system mounted.

    Raises OSError if it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # the administrator's own path may be a link
        self._open = {"": root}
        self._status = os.fstat(root)

    def __enter__(self) -> SharedFolder:
        return self

    def __exit__(self, *error: object) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)

    def folder(self, name: str) -> int:
        """Returns the descriptor of a folder by its relative path.

        Raises:
            FileNotFoundError: There is none.
            OddEntryError: Something else is in its place.
            OSError: It cannot be opened.
        """
        if name not in self._open:
            above, _, last = name.rpartition("/")
            self._open[name] = self._opened(self.folder(above), last, name)
        return self._open[name]

    def made(self, name: str) -> int:
        """Returns what folder() returns, after creating what is missing of it. Raises OddEntryError, OSError."""
        if name in self._open:
            return self._open[name]
        above, _, last = name.rpartition("/")
        parent = self.made(above)
        try:
            descriptor = self.folder(name)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):  # another host was faster
                os.mkdir(last, self._folder_mode, dir_fd=parent)
            descriptor = self.folder(name)
        self._share(descriptor, self._folder_mode)
        return descriptor

    def create(self, above: str, name: str) -> int:
        """Returns the descriptor of a new file in a folder that exists, for writing. Raises as folder()."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, self._file_mode, dir_fd=self.folder(above))
        self._share(descriptor, self._file_mode)
        return descriptor

    def _share(self, descriptor: int, mode: int) -> None:
        """Gives an entry of this process's user the folder's group and rights, as far as its file system has them."""
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            return
        with contextlib.suppress(OSError):
            if found.st_gid != self._status.st_gid:
                os.fchown(descriptor, -1, self._status.st_gid)
        with contextlib.suppress(OSError):
            if stat.S_IMODE(found.st_mode) != mode:
                os.fchmod(descriptor, mode)

    def status(self, name: str) -> os.stat_result | None:
        """Returns the status of an entry that may be anything, None if there is none. Raises as folder()."""
        above, _, last = name.rpartition("/")
        try:
            return os.stat(last, dir_fd=self.folder(above), follow_symlinks=False)
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turns a missing right to write into a TierError that names the rule."""
        try:
            yield
        except OSError as error:
            if error.errno not in _NOT_ALLOWED:
                raise
            raise TierError(f"user {os.geteuid()} may not write to {self._path}: {_GROUP_RULE}") from error

    @property
    def _all_users(self) -> bool:
        return bool(self._status.st_mode & stat.S_IWOTH)

    @property
    def _file_mode(self) -> int:
        return 0o600 | self._status.st_mode & (0o666 if self._all_users else 0o660)

    @property
    def _folder_mode(self) -> int:
        kept = stat.S_ISGID | stat.S_ISVTX
        return 0o700 | self._status.st_mode & (kept | (0o777 if self._all_users else 0o770))

    def _opened(self, above: int, last: str, name: str) -> int:
        try:
            descriptor = os.open(last, _FOLDER, dir_fd=above)
        except OSError as error:
            if error.errno in _NO_FOLDER:
                raise self._odd(name, "is a link or a file instead of a folder: remove it") from error
            raise
        if (found := os.fstat(descriptor)).st_uid not in self._users and not self._is_shared(found):
            os.close(descriptor)
            raise self._odd(name, f"belongs to user {found.st_uid}, who may not write there: chown it")
        return descriptor

    def _odd(self, name: str, why: str) -> OddEntryError:
        return OddEntryError(f"{self._path}/{name} {why}")

    @property
    def _users(self) -> set[int]:
        return {0, os.geteuid(), self._status.st_uid}

    def _is_shared(self, found: os.stat_result) -> bool:
        """Returns whether the folder's rights let other users create such an entry."""
        group = self._status.st_mode & stat.S_IWGRP and found.st_gid == self._status.st_gid
        return self._all_users or bool(group)
