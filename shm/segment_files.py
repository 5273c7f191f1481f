"""The files of segments in /dev/shm: opened, locked, removed and listed.

They are accessible only to their user; other processes receive descriptors.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import posix_ipc

from pagetier.shm import clock
from pagetier.shm._core import Observer, ShmError
from pagetier.shm.clock import Deadline
from pagetier.shm.failpoints import point
from pagetier.shm.geometry import Geometry
from pagetier.shm.index_header import Head, head_of

KINDS: Final = ("index", "locks", "arena")
_FOLDER: Final = Path("/dev/shm")
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ANOTHER: Final = "use another --name and --socket, and give engines that socket (PAGETIER_SOCKET)"
_LOCK_PATIENCE_S: Final = 0.1  # is_locked() of another process holds the lock for a moment


class InUseError(ShmError):
    """Another process uses the segments as their daemon."""


def open_segment(name: str, kind: str, flags: int = 0, *, read_only: bool = False) -> int:
    """Returns a descriptor.

    A file of another user is rejected, even if its mode or this process's rights allow opening it.

    Raises posix_ipc.ExistentialError if the segment does not exist, OSError if it cannot be opened.

    Raises:
        ShmError: It belongs to another user or cannot be created.
    """
    _check_owner(name, kind, owner_of(name, kind))  # a link or a folder cannot be opened at all
    descriptor = _open(name, kind, flags, read_only=read_only)
    try:
        _check_owner(name, kind, os.fstat(descriptor).st_uid)
    except ShmError:
        os.close(descriptor)
        raise
    return descriptor


def _check_owner(name: str, kind: str, owner: int | None) -> None:
    if owner not in (None, os.geteuid()):
        raise _not_ours(name, kind)


def _open(name: str, kind: str, flags: int, *, read_only: bool) -> int:
    try:
        return int(posix_ipc.SharedMemory(_path(name, kind), flags=flags, mode=0o600, read_only=read_only).fd)
    except posix_ipc.PermissionsError as error:
        if flags & posix_ipc.O_CREAT and not _file(name, kind).exists():
            raise _cannot_create(name, kind, "this user may not write there") from error
        raise _not_ours(name, kind) from error
    except posix_ipc.ExistentialError as error:
        if flags & posix_ipc.O_CREAT and not _FOLDER.is_dir():
            raise _cannot_create(name, kind, f"there is no {_FOLDER}") from error
        raise
    except OSError as error:
        why = error.strerror or str(error)  # posix_ipc sets no error number if a limit of open files is reached
        if flags & posix_ipc.O_CREAT:
            raise _cannot_create(name, kind, why) from error
        raise OSError(error.errno or errno.EMFILE, why) from error


def resize(name: str, kind: str, size: int) -> None:
    """Sets the length of a segment. Raises ShmError, OSError."""
    with opened(name, kind) as descriptor:
        try:
            os.ftruncate(descriptor, size)
        except OSError as error:
            limit = " (ulimit -f)" if error.errno == errno.EFBIG else ""
            raise _cannot_create(name, kind, f"{size} bytes: {error.strerror}{limit}") from error


def open_new(name: str, kind: str) -> int:
    """Returns a descriptor of a new segment in place of an existing one. Raises ShmError if that is another user's."""
    unlink_one(name, kind)
    try:
        return open_segment(name, kind, flags=posix_ipc.O_CREX)
    except posix_ipc.ExistentialError as error:
        raise _not_ours(name, kind) from error


def open_all(name: str, *kinds: str, read_only: frozenset[str]) -> list[int]:
    """Returns descriptors of all of these segments. Raises ShmError if a segment was removed, OSError."""
    with contextlib.ExitStack() as undo:
        descriptors = []
        for kind in kinds:
            descriptors.append(_open_living(name, kind, read_only=kind in read_only))
            undo.callback(os.close, descriptors[-1])
        undo.pop_all()
    return descriptors


def _open_living(name: str, kind: str, *, read_only: bool) -> int:
    try:
        return open_segment(name, kind, read_only=read_only)
    except posix_ipc.ExistentialError as error:
        raise ShmError(f"/dev/shm{_path(name, kind)} was removed: restart the daemon") from error


def observe_and_close(descriptors: Sequence[int]) -> Observer:
    """Returns an observer of the index and the lock words that these two descriptors name, and closes them.

    Raises:
        ShmError: They cannot be mapped, or are not segments of this format.
    """
    try:
        index, locks = descriptors
        return Observer(index, locks)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@contextlib.contextmanager
def opened(name: str, kind: str) -> Iterator[int]:
    """Yields a descriptor and closes it at the end."""
    descriptor = open_segment(name, kind)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def owner_of(name: str, kind: str = "index") -> int | None:
    """Returns the ID of the segment's owner, or None if there is no segment."""
    try:
        return _file(name, kind).lstat().st_uid
    except FileNotFoundError:
        return None


def lock(name: str, index: int) -> None:
    """Locks the segments for this process as their daemon. Raises InUseError if another daemon has locked them."""
    deadline = Deadline(_LOCK_PATIENCE_S)
    while not _locks(index, fcntl.LOCK_EX):
        if deadline.is_over:
            raise InUseError(f"another daemon uses segments {name!r}: stop it, or {_ANOTHER}")
        clock.sleep(_LOCK_PATIENCE_S / 10)


def is_locked(index: int) -> bool:
    """Returns whether a daemon uses the segments. Takes the lock for a moment, for which lock() tries again."""
    if not _locks(index, fcntl.LOCK_SH):
        return True
    fcntl.flock(index, fcntl.LOCK_UN)
    return False


def is_current(name: str, index: int) -> bool:
    """Returns whether the name still refers to the open file."""
    try:
        with opened(name, "index") as again:
            return os.path.sameopenfile(index, again)
    except posix_ipc.ExistentialError:
        return False


def identity_of(name: str, kind: str) -> tuple[int, int] | None:
    """Returns which file a name leads to, None if there is none."""
    try:
        found = _file(name, kind).lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def unlink(name: str, kinds: Sequence[str] = KINDS) -> None:
    """Removes names, usually all. The index's name goes last, because the next daemon looks for it."""
    for kind in reversed(kinds):
        unlink_one(name, kind)
        point("segments.unlinked")


def unlink_one(name: str, kind: str) -> None:
    """Removes one name. A segment that does not exist or belongs to another user is left unchanged."""
    with contextlib.suppress(posix_ipc.ExistentialError, posix_ipc.PermissionsError):
        posix_ipc.unlink_shared_memory(_path(name, kind))


def user_name(number: int) -> str:
    """Returns the name of a user, or the number if it has no name: "root", "1000"."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _path(name: str, kind: str) -> str:
    return f"/{name}.{kind}"


def _file(name: str, kind: str) -> Path:
    return _FOLDER / f"{name}.{kind}"


def _cannot_create(name: str, kind: str, why: str) -> ShmError:
    return ShmError(f"{_file(name, kind)} cannot be created: {why}")


def _not_ours(name: str, kind: str) -> ShmError:
    whose = "another user" if (owner := owner_of(name, kind)) is None else f"user {user_name(owner)}"
    release = f"have root run `pagetierd --name {name} --release-memory`, which releases nothing that a daemon uses"
    used = f"if a daemon runs there, use it (access.users), or {_ANOTHER}"
    return ShmError(f"{_file(name, kind)} belongs to {whose}: {used}; if none runs, {release}")


def _locks(index: int, way: int) -> bool:
    try:
        fcntl.flock(index, way | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_INDEX = ".index"


class FoundSegments(msgspec.Struct, frozen=True):
    """Segments under one name.

    Attributes:
        uid: The user to whom they belong.
        nbytes: The memory that they take, as far as this process can see it.
        head: The first bytes of the index.
        lives: Whether a daemon uses them.
    """

    name: str
    uid: int
    nbytes: int
    head: Head
    lives: bool


def existing_geometry(name: str) -> Geometry | None:
    """Returns the sizes of the segments under a name, which may be another user's; None if there are none to read."""
    with contextlib.ExitStack() as stack, contextlib.suppress(ShmError, OSError):
        descriptors = []
        for kind in ("index", "locks"):
            descriptors.append(os.open(_file(name, kind), _READ))
            stack.callback(os.close, descriptors[-1])
        return Geometry.of(Observer(*descriptors).header())
    return None


def survey(folder: Path = Path("/dev/shm")) -> list[FoundSegments]:
    """Returns the segments that this process may open, sorted by name."""
    return sorted(_find(folder), key=lambda found: found.name)


def _find(folder: Path) -> Iterator[FoundSegments]:
    for path in folder.glob(f"*{_INDEX}"):
        try:
            index = os.open(path, _READ)
        except OSError:
            continue
        try:  # any user may create files there, also FIFOs, which would wait for a writer
            is_file = stat.S_ISREG(os.fstat(index).st_mode)
            found = _read(folder, path.name.removesuffix(_INDEX), index) if is_file else None
        finally:
            os.close(index)
        if found is not None:
            yield found


def _read(folder: Path, name: str, index: int) -> FoundSegments | None:
    head = head_of(index)
    files = [folder / f"{name}.{kind}" for kind in KINDS]
    if not head.ours and not (head.unfinished and all(file.exists() for file in files)):
        return None
    nbytes = sum(map(_memory, files))
    return FoundSegments(name, os.fstat(index).st_uid, nbytes, head, is_locked(index))


def _memory(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0
