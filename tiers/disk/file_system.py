"""The file system below a store: names and owner of its files, errors of the system, atomic writes."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import lmdb

from pagetier.shm.failpoints import point
from pagetier.tiers.base import TierError
from pagetier.tiers.disk_folder import folder_remedy

DATA: Final = "data.mdb"
LOCK: Final = "lock.mdb"
FRAMES: Final = "frames."  # the begin of the names of files that hold frames, before their numbers
OWNER: Final = "owner"
COPY: Final = ".new"  # appended to an environment's name until the copy takes its place

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
_HERE: Final = -100
_EXCHANGE: Final = 2
_PADDED: Final = 512  # more than any content, and the same length for each write
_IO: Final = "/proc/thread-self/io"
_COUNTERS_BYTES: Final = 4096  # more than all counters
_READ_ONLY: Final = (
    "; if the kernel made it read-only after errors (dmesg), repair and mount it again; a service may write to its own"
    " folder below /var/lib alone: `systemctl edit` it, [Service] ReadWritePaths="
)


@contextlib.contextmanager
def converted_errors(folder: Path) -> Iterator[None]:
    """Converts errors of the system and of LMDB to TierError."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        raise TierError(f"{folder} cannot be the disk tier's folder: it or one of its parents is a file") from error
    except OSError as error:
        raise TierError(f"{folder} cannot be used by the disk tier: {_why(folder, error)}") from error
    except lmdb.Error as error:
        raise TierError(f"{folder} cannot be used by the disk tier: {error}") from error


def _why(folder: Path, error: OSError) -> str:
    """Returns the system's reason, with what to do where that is known."""
    if error.errno == errno.EROFS:
        return f"{error.strerror}{_READ_ONLY}"
    remedy = folder_remedy(folder) if isinstance(error, PermissionError) else ""
    return "; ".join(filter(None, (error.strerror or str(error), remedy)))


def make(folder: Path) -> None:
    """Creates the folder, unless it exists. Raises TierError where no user can create one, as in /proc, and OSError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileNotFoundError, PermissionError) as error:
        if folder_remedy(folder) and isinstance(error, PermissionError):
            raise
        there = next(parent for parent in folder.parents if parent.exists())
        why = f"{error.strerror}: no folder can be created in {there}"
        raise TierError(f"{folder} cannot be used by the disk tier: {why}; set another disk.path") from error


def own(folder: Path) -> int:
    """Returns a descriptor that keeps the folder locked for this tier while it is open. Raises TierError, OSError."""
    descriptor = _open_owner(folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove_planted(folder)
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
        check_user(folder, (folder.lstat(), os.fstat(inside)))
        return os.open(OWNER, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=inside)
    finally:
        os.close(inside)


def check_user(folder: Path, found: Sequence[os.stat_result]) -> None:
    """Checks that no other user could serve pages from the folder, or redirect files by links in it.

    Args:
        folder: The folder's name, which may be a link.
        found: The status of the name and of the folder.

    Raises:
        TierError: Another user could.
    """
    others = {each.st_uid for each in found} - {0, os.geteuid()}
    if others:
        raise TierError(f"{folder} belongs to user {min(others)}: chown it to the daemon's, or set another disk.path")
    if found[-1].st_mode & stat.S_IWOTH:
        raise TierError(f"all users may write to {folder}: chmod o-w {folder}, or set another disk.path")


def _remove_planted(folder: Path) -> None:
    """Removes links in place of environments and of their files: LMDB opens them by name, and would follow them.

    A group that may write to the folder can put them there.

    Raises:
        TierError: An environment belongs to another user.
        OSError: A link cannot be removed.
    """
    for path in [path for path in folder.iterdir() if path.name.removesuffix(COPY).isdecimal()]:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            path.unlink()
        elif found.st_uid not in (0, os.geteuid()):
            raise TierError(f"{path} belongs to user {found.st_uid}: remove it, or set another disk.path")
        elif stat.S_ISDIR(found.st_mode):
            for link in [file for file in path.iterdir() if file.is_symlink()]:
                link.unlink()


def read_file(path: Path) -> bytes:
    """Returns the content of a regular file. Anything else could keep the caller waiting. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, f"{path} is no regular file: remove it")
        return file.read()


def is_still(descriptor: int, path: Path) -> bool:
    """Returns whether the path leads to the open file. Raises OSError if it leads nowhere."""
    return os.path.samestat(os.fstat(descriptor), path.stat())


def replaced(owner: int, folder: Path) -> str:
    """Returns that the folder is another one than own() locked, as if a file system was mounted there since; or "".

    Raises OSError if it is gone.
    """
    return "" if is_still(owner, folder / OWNER) else f"{folder} was replaced by another folder"


def insist_on_owned(owner: int, folder: Path) -> None:
    """Raises TierError if the folder is another one than own() locked, OSError if it is gone."""
    if why := replaced(owner, folder):
        raise TierError(why)


def changed(descriptor: int, path: Path, length: int) -> str:
    """Returns how a file was changed since it was opened, or "". Raises OSError if it is gone.

    It had at least `length` bytes, which the caller read before, since the file may grow at any time.
    """
    if not is_still(descriptor, path):
        return f"{path} was replaced while it was open"
    there = os.fstat(descriptor).st_size
    return f"{path} was cut while it was open: {there} bytes of {length}" if there < length else ""


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file's content by `content` and blanks.

    After any failure or power loss it has either the old content or the new one. The old file stays beside it, so that
    the next write reuses its block on a full file system.

    Raises:
        OSError: Writing failed.
    """
    beside = path.with_name(path.name + ".tmp")
    padded = content.ljust(_PADDED)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO would wait for a reader
    descriptor = os.open(beside, flags, 0o600)
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
    """Exchanges two names atomically. Returns False if one is missing or the file system cannot exchange names."""
    names = os.fsencode(one), os.fsencode(other)
    refused: int = _libc.renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE)
    return not refused


def sync_folder(folder: Path) -> None:
    """Syncs a folder, so that names created, renamed or removed in it survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def forget(path: Path) -> None:
    """Drops a file from the page cache, so that the next read reads the disk. Failures are ignored.

    After a failed write, the page cache has clean pages with content that the disk does not have.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):
                os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def remaining(pieces: Sequence[memoryview], done: int) -> list[memoryview]:
    """Returns the buffers that are left. A call ends early at a disk error, which only the next one reports."""
    for number, piece in enumerate(pieces):
        if done < len(piece):
            return [piece[done:], *pieces[number + 1 :]]
        done -= len(piece)
    return []


def prefetch(descriptor: int, offset: int, length: int) -> None:
    """Makes the kernel start reading. Failures are ignored."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_WILLNEED)


def bytes_written() -> int:
    """Returns the bytes that this thread has passed to write() and similar calls; 0 if the kernel does not count."""
    try:
        descriptor = os.open(_IO, os.O_RDONLY | os.O_CLOEXEC)  # a file object takes seven system calls
        try:
            lines = os.read(descriptor, _COUNTERS_BYTES).splitlines()
        finally:
            os.close(descriptor)
    except OSError:
        return 0
    return next((int(line[7:]) for line in lines if line.startswith(b"wchar: ")), 0)


def frame_files(folder: Path) -> list[Path]:
    """Returns the files of frames in an environment's folder, in the order of their numbers."""
    numbered = [path for path in folder.glob(f"{FRAMES}*") if path.name.removeprefix(FRAMES).isdecimal()]
    return sorted(numbered, key=lambda path: int(path.name.removeprefix(FRAMES)))


def remove_environment(folder: Path) -> None:
    """Removes the files of an environment and the folder. A folder that contains other files is kept with them."""
    for name in (DATA, LOCK):
        (folder / name).unlink(missing_ok=True)
    for path in frame_files(folder):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def numbered_folders(folder: Path) -> Iterator[Path]:
    """Returns the folders of environments and the copies that an interrupted resize left."""
    return (path for path in folder.iterdir() if path.name.removesuffix(COPY).isdecimal() and path.is_dir())


def remove_copies(folder: Path) -> None:
    """Removes copies that a crash left behind: they use disk space that is not counted. Raises OSError."""
    for path in [path for path in numbered_folders(folder) if path.suffix == COPY]:
        remove_environment(path)
