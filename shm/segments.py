"""The three segments of one daemon: made, adopted, locked, opened for clients and removed.

They are POSIX shared memory under the daemon's name, accessible only to its user; other processes receive descriptors.
The process that holds the lock on the index file is the daemon. The kernel releases the lock when that process ends.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec
import posix_ipc

from pagetier.shm._core import Owner, ShmError
from pagetier.shm.failpoints import point
from pagetier.shm.geometry import Geometry
from pagetier.shm.index_header import head_of
from pagetier.shm.index_memory import populate_index
from pagetier.shm.lazy_memory import LazyMemory, allocate_lazily
from pagetier.shm.log_format import event
from pagetier.shm.segment_files import (
    KINDS,
    identity_of,
    is_current,
    lock,
    open_all,
    open_new,
    open_segment,
    opened,
    resize,
    unlink,
)
from pagetier.shm.slot_locks import SlotLocks, with_lock
from pagetier.shm.units import counted

log = logging.getLogger(__name__)

_TRIES: Final = 20
_BLOCK: Final = 512  # bytes that st_blocks counts
_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # momentary, unrelated to the segments


class Leftovers(Enum):
    """What a daemon does with segments that an earlier daemon left."""

    ADOPT = "adopt"
    DISCARD = "discard"


class Origin(Enum):
    """How the segments were obtained."""

    MADE = "made"
    ADOPTED = "adopted"


class UnfitError(ShmError):
    """Segments of an earlier daemon cannot be adopted; they are unchanged. The caller adds how to discard them."""


class Segments:
    """The segments under a name, locked for this process until release() or its death."""

    def __init__(self, name: str, lock: int, owner: Owner, origin: Origin) -> None:
        self.name = name
        self.owner = owner
        self.origin = origin
        self._lock = lock
        self._files = {kind: identity_of(name, kind) for kind in KINDS}

    def __repr__(self) -> str:
        return f"<Segments {self.name}, {self.origin.value}>"

    def descriptors(self) -> list[int]:
        """Returns new descriptors for a client: the index read-only, the others writable. The caller closes them."""
        return open_all(self.name, *KINDS, read_only=frozenset({"index"}))

    def read_only_descriptors(self) -> list[int]:
        """Returns new read-only descriptors of index and lock words for an observer. The caller closes them."""
        return open_all(self.name, "index", "locks", read_only=frozenset(KINDS))

    def slot_descriptors(self, slot: int) -> list[int]:
        """Returns new descriptors for the process in a slot, which carry its lock. The caller closes them."""
        return with_lock(self.descriptors(), self.owner, slot)

    def open_locks(self) -> SlotLocks:
        """Returns the locks of the slots. The caller closes them."""
        return SlotLocks(open_segment(self.name, "arena"))

    @property
    def whole(self) -> bool:
        """Whether all of an adopted arena is allocated. True for a new arena, which is populated after it was made."""
        if self.origin is Origin.MADE:
            return True
        with opened(self.name, "arena") as descriptor:
            there = os.fstat(descriptor)
        return there.st_blocks * _BLOCK >= there.st_size

    def allocate_lazily(self, through: LazyMemory) -> None:
        """Makes the core allocate arena memory as pages are granted, instead of populating it. Raises OSError."""
        allocate_lazily(self.owner, self.name, self._files["arena"], through)

    def removed(self) -> list[str]:
        """Returns the files that another process has removed or replaced: no other process can find these segments."""
        return [f"/dev/shm/{self.name}.{kind}" for kind in KINDS if kind not in self._own()]

    def _own(self) -> list[str]:
        return [kind for kind in KINDS if identity_of(self.name, kind) == self._files[kind]]

    def remove(self) -> None:
        """Removes the segments. Clients see that they were closed; the last process that maps them frees the memory.

        Files that have replaced them are another daemon's, and stay.
        """
        self.owner.close()
        point("segments.closed")
        unlink(self.name, self._own())
        self.release()

    def release(self) -> None:
        """Releases the lock and leaves the segments for the next daemon. The owner must not be used after it."""
        os.close(self._lock)


class SegmentRequest(msgspec.Struct, frozen=True):
    """The segments that a daemon requests from take().

    Attributes:
        name: The name of the segments.
        geometry: The size of new segments.
        build: Written to the header for diagnostics.
        leftovers: What to do with the segments of an earlier daemon.
        check_room: Called before segments are made; its exceptions are passed on.
        accepts: Returns whether existing segments of that geometry can be used; None: only exactly this geometry.
    """

    name: str
    geometry: Geometry
    build: str
    leftovers: Leftovers = Leftovers.ADOPT
    check_room: Callable[[], None] = lambda: None
    accepts: Callable[[Geometry], bool] | None = None


def take(request: SegmentRequest) -> Segments:
    """Adopts the segments that an earlier daemon left under this name, or makes new ones.

    Raises UnfitError, and leaves the segments unchanged, if they are corrupt, of another format, or contain pages and
    have an unsuitable size. Removes them if they are empty and have an unsuitable size. Raises OSError if memory is
    short.

    Returns:
        Segments ready for use. In adopted ones, pins and reservations of processes that died since are released.

    Raises:
        ShmError: InUseError if another daemon uses them; or they belong to another user.
    """
    for _ in range(_TRIES):
        index = open_segment(request.name, "index", flags=posix_ipc.O_CREAT)
        try:
            lock(request.name, index)
            point("segments.locked")
            segments = _take_locked(request, index)
        except BaseException:
            os.close(index)
            raise
        if segments is not None:
            return segments
        os.close(index)
    raise ShmError(
        f"segments {request.name!r} were replaced {_TRIES} times: is another daemon being started and stopped?"
    )


def _take_locked(request: SegmentRequest, index: int) -> Segments | None:
    """Returns None to retry: the index was removed or replaced before it was locked, or was unusable and is removed."""
    if not is_current(request.name, index):
        return None
    if os.fstat(index).st_size == 0:
        return Segments(request.name, index, _make_or_unlink(request), Origin.MADE)
    owner = None if request.leftovers is Leftovers.DISCARD else _adopt(request, index)
    if owner is not None:
        return Segments(request.name, index, owner, Origin.ADOPTED)
    point("segments.useless")
    unlink(request.name)
    return None


def _make_or_unlink(request: SegmentRequest) -> Owner:
    try:
        request.check_room()
        return _make(request)
    except BaseException:
        unlink(request.name)
        raise


def _make(request: SegmentRequest) -> Owner:
    name, g = request.name, request.geometry
    for kind in ("locks", "arena"):
        os.close(open_new(name, kind))
    point("segments.named")
    for kind, size in zip(KINDS, g.sizes, strict=True):
        resize(name, kind, size)
    point("segments.sized")
    owner = map_segments(name)
    point("segments.mapped")
    populate_index(owner, g)
    point("segments.populated")
    owner.format(g.frame_bytes, g.frames, g.entries, g.spaces, secrets.randbits(64), request.build)
    owner.adopt(0)
    point("segments.made")
    return owner


def _adopt(request: SegmentRequest, index: int) -> Owner | None:
    """Returns None if the segments were never finished, or were being removed."""
    head = head_of(index)
    if head.unfinished:
        return None
    if head.unusable_reason:
        raise _unfit(request.name, head.unusable_reason)
    try:
        owner = map_segments(request.name)
    except posix_ipc.ExistentialError:
        return None
    except OSError as error:
        why = f"cannot be mapped: {error.strerror}"
        if error.errno in _SHORTAGES:
            raise ShmError(f"segments {request.name!r} {why}") from error
        raise _unfit(request.name, why) from error
    return _adopt_mapped(request, owner)


def _adopt_mapped(request: SegmentRequest, owner: Owner) -> Owner | None:
    reason = owner.unusable_reason()
    if reason is not None:
        raise _unfit(request.name, f"are corrupt: {reason}")
    before = owner.header()
    if before.closed:
        return None
    other = _other_geometry(request, owner)
    if other and before.pages:
        raise _unfit(request.name, f"contain pages and have {other}")
    point("segments.sound")
    owner.adopt(used_slots(owner))
    point("segments.adopted")
    after = owner.header()
    _log_dropped(after.dropped - before.dropped)
    if not other:
        return owner
    if after.pages:  # a daemon that died while it adopted them had not counted any yet
        raise _unfit(request.name, f"contain pages and have {other}")
    log.info("segments %r contain no page and have %s: dropped", request.name, other, extra=event("leftovers_dropped"))
    return None


def _log_dropped(pages: int) -> None:
    if pages:
        log.warning("dropped %s, corrupt or incomplete", counted(pages, "page"), extra=event("dropped", pages=pages))


def _unfit(name: str, why: str) -> UnfitError:
    return UnfitError(f"segments {name!r} {why}")


def map_segments(name: str) -> Owner:
    """Maps the segments by new descriptors: a mapping keeps its file open, and with it the lock on that descriptor."""
    with contextlib.ExitStack() as stack:
        return Owner(*(stack.enter_context(opened(name, kind)) for kind in KINDS))


def _other_geometry(request: SegmentRequest, owner: Owner) -> str:
    """Returns the existing and the configured geometry, or "" if the existing one can be used."""
    have = Geometry.of(owner.header())
    if have == request.geometry or (request.accepts is not None and request.accepts(have)):
        return ""
    return f"{have}; the configuration asks for {request.geometry}"


def used_slots(owner: Owner) -> int:
    """Returns the bits of all slots in use, whose pages are released later, when no process can write to them."""
    return sum(1 << attachment.slot for attachment in owner.attachments())
