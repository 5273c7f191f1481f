"""The three segments of one daemon: made, found, locked, handed out and removed.

They are posix shared memory under the daemon's name, for its user only; everybody else gets descriptors. Who
holds the lock on the index file is the daemon: the kernel lets go of it when the daemon dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec
import posix_ipc

from ._core import Owner, ShmError, plan
from .process import Process

_KINDS: Final = ("index", "locks", "arena")
_TRIES: Final = 20
_U64: Final = 64


class Geometry(msgspec.Struct, frozen=True):
    """What segments are made with. frame_bytes: a power of two, 4096 or more; entries: pages at most."""

    frame_bytes: int
    frames: int
    entries: int
    spaces: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Bytes of index, lock words and arena."""
        return plan(self.frame_bytes, self.frames, self.entries, self.spaces)


class Leftovers(Enum):
    """What to do with segments that an earlier daemon left."""

    ADOPT = "adopt"
    DISCARD = "discard"


class Origin(Enum):
    """Where the segments in hand came from."""

    MADE = "made"
    ADOPTED = "adopted"


class Segments:
    """The segments under a name, locked for this process until release() or its death."""

    def __init__(self, name: str, lock: int, owner: Owner, origin: Origin) -> None:
        self.name = name
        self.owner = owner
        self.origin = origin
        self._lock = lock

    def __repr__(self) -> str:
        return f"<Segments {self.name}, {self.origin.value}>"

    def descriptors(self) -> list[int]:
        """Fresh descriptors for a client: the index read-only, the others to write. The caller closes them."""
        return [_open(self.name, "index", read_only=True), _open(self.name, "locks"), _open(self.name, "arena")]

    def read_only_descriptors(self) -> list[int]:
        """Fresh read-only descriptors of index and lock words, for who only looks. The caller closes them."""
        return [_open(self.name, kind, read_only=True) for kind in ("index", "locks")]

    def remove(self) -> None:
        """Ends the segments: clients are told, the names go, the memory goes with the last process that maps it."""
        self.owner.close()
        _unlink(self.name)
        self.release()

    def release(self) -> None:
        """Lets go of the lock and leaves the segments for the next daemon. The owner must not be used any more."""
        os.close(self._lock)


class Wish(msgspec.Struct, frozen=True):
    """What a daemon asks of `take`. check_room is called before anything is made; what it raises ends the matter."""

    name: str
    geometry: Geometry
    build: str
    leftovers: Leftovers = Leftovers.ADOPT
    check_room: Callable[[], None] = lambda: None


def take(wish: Wish) -> Segments:
    """Adopts the segments that an earlier daemon left under this name, or makes new ones.

    Returned segments are ready for use; in adopted ones the pins and reservations of processes that died meanwhile
    are taken back already. Raises ShmError if another daemon lives on them, if they are another user's, of another
    format or of another size than asked for; OSError if memory is short.
    """
    for _ in range(_TRIES):
        lock = _open(wish.name, "index", flags=posix_ipc.O_CREAT)
        try:
            _lock(lock, wish.name)
            segments = _take_locked(wish, lock)
        except BaseException:
            os.close(lock)
            raise
        if segments is not None:
            return segments
        os.close(lock)
    raise ShmError(f"segments {wish.name!r} come and go: is another daemon being started and stopped?")


def _take_locked(wish: Wish, lock: int) -> Segments | None:
    """None if the index was removed or replaced before it was locked, or turned out to be of no use: try again."""
    if not _is_current(wish.name, lock):
        return None
    if os.fstat(lock).st_size == 0:
        return Segments(wish.name, lock, _make_or_unlink(wish), Origin.MADE)
    owner = None if wish.leftovers is Leftovers.DISCARD else _adopt(wish)
    if owner is not None:
        return Segments(wish.name, lock, owner, Origin.ADOPTED)
    _unlink(wish.name)
    return None


def _make_or_unlink(wish: Wish) -> Owner:
    try:
        wish.check_room()
        return _make(wish)
    except BaseException:
        _unlink(wish.name)
        raise


def _make(wish: Wish) -> Owner:
    name, g = wish.name, wish.geometry
    for kind in ("locks", "arena"):
        _unlink_one(name, kind)
        os.close(_open(name, kind, flags=posix_ipc.O_CREX))
    for kind, size in zip(_KINDS, g.sizes, strict=True):
        with _opened(name, kind) as descriptor:
            os.ftruncate(descriptor, size)
    owner = _map(name)
    owner.populate_index()
    owner.format(g.frame_bytes, g.frames, g.entries, g.spaces, secrets.randbits(_U64), wish.build)
    owner.adopt(0)
    return owner


def _adopt(wish: Wish) -> Owner | None:
    """None if they were never finished, or were being removed."""
    try:
        owner = _map(wish.name)
    except (posix_ipc.ExistentialError, OSError):
        return None
    header = owner.header()
    if not header["magic"] or header["closed"]:
        return None
    why_not = owner.why_not()
    if why_not is not None:
        raise ShmError(f"segments {wish.name!r} were left by another build: {why_not}; drop them with --fresh")
    _check_geometry(wish, owner)
    owner.adopt(_living(owner))
    return owner


def _map(name: str) -> Owner:
    """Maps descriptors of its own: a mapping keeps the file that it was made of open, and a lock on it held."""
    with contextlib.ExitStack() as stack:
        return Owner(*(stack.enter_context(_opened(name, kind)) for kind in _KINDS))


def _check_geometry(wish: Wish, owner: Owner) -> None:
    header = owner.header()
    for field in wish.geometry.__struct_fields__:
        have, want = header[field], getattr(wish.geometry, field)
        if have != want:
            raise ShmError(
                f"segments {wish.name!r} are still warm with {field} = {have}, the configuration asks for {want}:"
                f" start once with the old value and stop that daemon, or drop what is in memory with --fresh"
            )


def _living(owner: Owner) -> int:
    """Bits of the slots whose process lives."""
    return sum(1 << s["slot"] for s in owner.takers() if Process(s["pid"], s["started"]).lives())


def _path(name: str, kind: str) -> str:
    return f"/{name}.{kind}"


def _open(name: str, kind: str, flags: int = 0, *, read_only: bool = False) -> int:
    try:
        return int(posix_ipc.SharedMemory(_path(name, kind), flags=flags, mode=0o600, read_only=read_only).fd)
    except posix_ipc.PermissionsError as error:
        whose = _owner_of(name, kind)
        raise ShmError(f"segments {name!r} belong to {whose}: run as that user, or use another name") from error


@contextlib.contextmanager
def _opened(name: str, kind: str) -> Iterator[int]:
    descriptor = _open(name, kind)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _owner_of(name: str, kind: str) -> str:
    try:
        return f"user {Path(f'/dev/shm{_path(name, kind)}').owner()}"
    except (OSError, KeyError):
        return "another user"


def _lock(descriptor: int, name: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ShmError(f"another daemon lives on segments {name!r}: stop it, or use another name") from error


def _is_current(name: str, lock: int) -> bool:
    """Whether the name still leads to the file that was opened and locked."""
    try:
        with _opened(name, "index") as again:
            return os.path.sameopenfile(lock, again)
    except posix_ipc.ExistentialError:
        return False


def _unlink(name: str) -> None:
    """Removes the names; the index's goes last, as it is what the next daemon looks for."""
    for kind in reversed(_KINDS):
        _unlink_one(name, kind)


def _unlink_one(name: str, kind: str) -> None:
    with contextlib.suppress(posix_ipc.ExistentialError):
        posix_ipc.unlink_shared_memory(_path(name, kind))
