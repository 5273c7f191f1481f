"""Files below LMDB: owners, atomic writing, and what a data file says of its own length."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import lmdb

from pagetier.shm.failpoints import point
from pagetier.tiers.base import TierError
from pagetier.tiers.capacity import PAGE

DATA: Final = "data.mdb"
LOCK: Final = "lock.mdb"
OWNER: Final = "owner"
COPY: Final = ".new"  # behind an environment's name, until it takes its place

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
_HERE: Final = -100
_EXCHANGE: Final = 2
_PADDED: Final = 512  # more than is ever written, and as long as what it is written over
_MAGIC: Final = 0xBEEFC0DE
# 16 bytes into each of the first two pages: magic, version, address, map size; then of two trees, the free list and the
# databases, a size of pages, flags and 42 bytes that are not looked at; then the number of the last page.
_META: Final = struct.Struct("<I20x4xH42x4xH42xQ")
_META_AT: Final = 16
_FLAGS: Final = (8, 0)  # of the trees: numbers as keys, and nothing. LMDB aborts where others are there
_IO: Final = "/proc/thread-self/io"


def own(folder: Path) -> int:
    """Returns a descriptor: as long as it is open, the folder is this tier's. Raises TierError, OSError."""
    descriptor = _open_owner(folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise TierError(f"{folder} is in use by another daemon") from error
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _open_owner(folder: Path) -> int:
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check_user(folder, (folder.lstat(), os.fstat(inside)))
        return os.open(OWNER, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=inside)
    finally:
        os.close(inside)


def _check_user(folder: Path, found: Sequence[os.stat_result]) -> None:
    """Raises TierError where another user could serve pages from the folder, or lead to files by links in it.

    found: the folder's name, which may be a link, and the folder itself.
    """
    strangers = {each.st_uid for each in found} - {0, os.geteuid()}
    if strangers:
        raise TierError(
            f"{folder} belongs to user {min(strangers)}: chown it to the daemon's, or set another disk.path"
        )
    if found[-1].st_mode & stat.S_IWOTH:
        raise TierError(f"all users may write to {folder}: chmod o-w {folder}, or set another disk.path")


def is_still(descriptor: int, path: Path) -> bool:
    """Whether the path leads to the file that is open. Raises OSError where it leads nowhere."""
    return os.path.samestat(os.fstat(descriptor), path.stat())


def write_atomically(path: Path, content: bytes) -> None:
    """The file holds either what it held or `content` and blanks, whatever fails, also after a power loss.

    What it held stays beside it: its block takes what is written next, where the file system has no other.
    """
    beside = path.with_name(path.name + ".tmp")
    padded = content.ljust(_PADDED)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.write(descriptor, padded) < len(padded):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(descriptor, len(padded))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    point("state.written")
    if not _exchange(beside, path):
        beside.rename(path)
    point("state.exchanged")
    sync_folder(path.parent)


def _exchange(one: Path, other: Path) -> bool:
    """At once. False where one is missing, or the file system can not."""
    names = os.fsencode(one), os.fsencode(other)
    refused: int = _libc.renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE)
    return not refused


def sync_folder(folder: Path) -> None:
    """Names made, renamed or removed in it are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """What was written into it is on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def forget(path: Path) -> None:
    """Lets go of what the page cache has of a file, so that who reads it next reads the disk. A hint.

    After a write that failed the cache holds, as if it were clean, what the disk does not.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):
                os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def fetch_ahead(descriptor: int, offset: int, length: int) -> None:
    """Lets the disk begin to read. A hint."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_WILLNEED)


def bytes_written() -> int:
    """What this thread handed to write() and its kin so far; 0 where the kernel does not count."""
    try:
        with open(_IO, "rb", buffering=0) as counters:  # noqa: PTH123  a Path costs more than the reading
            lines = counters.read().splitlines()
    except OSError:
        return 0
    return next((int(line[7:]) for line in lines if line.startswith(b"wchar: ")), 0)


def promised_bytes(data: Path) -> int:
    """How long the file must be for what its two meta pages say; 0 where one of them is not whole."""
    with data.open("rb") as file:
        promises = [_promise(file.read(PAGE)), _promise(file.read(PAGE))]
    return max(promises) if all(promises) else 0


def _promise(meta: bytes) -> int:
    if len(meta) < PAGE:
        return 0
    magic, *flags, last = _META.unpack_from(meta, _META_AT)
    return (last + 1) * PAGE if magic == _MAGIC and tuple(flags) == _FLAGS else 0


def remove_environment(folder: Path) -> None:
    """Only what is LMDB's: anything else that somebody put there stays, and so does the folder then."""
    for name in (DATA, LOCK):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def numbered_folders(folder: Path) -> Iterator[Path]:
    """Environments, and what a compaction left behind."""
    return (path for path in folder.iterdir() if path.name.removesuffix(COPY).isdecimal() and path.is_dir())


# If LMDB meets damage while it looks up a database's root, it reports nothing at first, and then BadTxnError for every
# further call of the transaction.
DAMAGE: Final = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.PageFullError,
    lmdb.CursorFullError,
    lmdb.BadTxnError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.MapResizedError,
)
