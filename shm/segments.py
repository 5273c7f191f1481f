"""The three segments of one daemon: made, found, locked, handed out and removed.

They are posix shared memory under the daemon's name, for its user only; everybody else gets descriptors. Who
holds the lock on the index file is the daemon: the kernel lets go of it when the daemon dies.
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
from pagetier.shm.log_format import event
from pagetier.shm.segment_files import (
    KINDS,
    is_current,
    lock,
    open_all,
    open_new,
    open_segment,
    opened,
    resize,
    unlink,
)

log = logging.getLogger(__name__)

_TRIES: Final = 20
_U64: Final = 64
_BLOCK: Final = 512  # what st_blocks counts
_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # of the moment, and no matter of the segments


class Leftovers(Enum):
    """What to do with segments that an earlier daemon left."""

    ADOPT = "adopt"
    DISCARD = "discard"


class Origin(Enum):
    """Where the segments in hand came from."""

    MADE = "made"
    ADOPTED = "adopted"


class UnfitError(ShmError):
    """What an earlier daemon left can not be taken over; it is as it was. Who tells it says how it can be dropped."""


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
        return open_all(self.name, *KINDS, read_only=frozenset({"index"}))

    def read_only_descriptors(self) -> list[int]:
        """Fresh read-only descriptors of index and lock words, for who only looks. The caller closes them."""
        return open_all(self.name, "index", "locks", read_only=frozenset(KINDS))

    @property
    def whole(self) -> bool:
        """Whether all of an arena that was adopted has its memory; of one that was made it is yet to be populated."""
        if self.origin is Origin.MADE:
            return True
        with opened(self.name, "arena") as descriptor:
            there = os.fstat(descriptor)
        return there.st_blocks * _BLOCK >= there.st_size

    def take_lazily(self) -> None:
        """The arena is not populated: its memory is taken as it is granted, and nobody is granted what there is not."""
        with opened(self.name, "arena") as descriptor:
            self.owner.take_lazily(descriptor)

    def remove(self) -> None:
        """Ends the segments: clients are told, the names go, the memory goes with the last process that maps it."""
        self.owner.close()
        point("segments.closed")
        unlink(self.name)
        self.release()

    def release(self) -> None:
        """Lets go of the lock and leaves the segments for the next daemon. The owner must not be used any more."""
        os.close(self._lock)


class Wish(msgspec.Struct, frozen=True):
    """What a daemon asks of `take`. check_room is called before anything is made; what it raises ends the matter.

    will_do: whether what an earlier daemon left is of use; None: only exactly this geometry is.
    """

    name: str
    geometry: Geometry
    build: str
    leftovers: Leftovers = Leftovers.ADOPT
    check_room: Callable[[], None] = lambda: None
    will_do: Callable[[Geometry], bool] | None = None


def take(wish: Wish) -> Segments:
    """Adopts the segments that an earlier daemon left under this name, or makes new ones.

    Returned segments are ready for use; in adopted ones the pins and reservations of processes that died meanwhile
    are taken back already. Those of another size than asked for are dropped where they hold no page. Raises ShmError if
    another daemon lives on them or if they are another user's, UnfitError if they are damaged, of another format, or
    warm and of another size, and then leaves them as they are; OSError if memory is short.
    """
    for _ in range(_TRIES):
        index = open_segment(wish.name, "index", flags=posix_ipc.O_CREAT)
        try:
            lock(wish.name, index)
            point("segments.locked")
            segments = _take_locked(wish, index)
        except BaseException:
            os.close(index)
            raise
        if segments is not None:
            return segments
        os.close(index)
    raise ShmError(f"segments {wish.name!r} come and go: is another daemon being started and stopped?")


def _take_locked(wish: Wish, index: int) -> Segments | None:
    """None if the index was removed or replaced before it was locked, or turned out to be of no use: try again."""
    if not is_current(wish.name, index):
        return None
    if os.fstat(index).st_size == 0:
        return Segments(wish.name, index, _make_or_unlink(wish), Origin.MADE)
    owner = None if wish.leftovers is Leftovers.DISCARD else _adopt(wish, index)
    if owner is not None:
        return Segments(wish.name, index, owner, Origin.ADOPTED)
    point("segments.useless")
    unlink(wish.name)
    return None


def _make_or_unlink(wish: Wish) -> Owner:
    try:
        wish.check_room()
        return _make(wish)
    except BaseException:
        unlink(wish.name)
        raise


def _make(wish: Wish) -> Owner:
    name, g = wish.name, wish.geometry
    for kind in ("locks", "arena"):
        os.close(open_new(name, kind))
    point("segments.named")
    for kind, size in zip(KINDS, g.sizes, strict=True):
        resize(name, kind, size)
    point("segments.sized")
    owner = _map(name)
    point("segments.mapped")
    _populate_index(owner)
    point("segments.populated")
    owner.format(g.frame_bytes, g.frames, g.entries, g.spaces, secrets.randbits(_U64), wish.build)
    owner.adopt(0)
    point("segments.made")
    return owner


def _populate_index(owner: Owner) -> None:
    try:
        owner.populate_index()
    except OSError as error:
        too_old = " (Linux 5.14 can)" if error.errno == errno.EINVAL else ""
        raise ShmError(f"the memory of the index can not be had: {error.strerror}{too_old}") from error


def _adopt(wish: Wish, index: int) -> Owner | None:
    """None if they were never finished, or were being removed."""
    head = head_of(index)
    if head.unfinished:
        return None
    if head.why_not:
        raise _no_use(wish.name, head.why_not)
    try:
        owner = _map(wish.name)
    except posix_ipc.ExistentialError:
        return None
    except OSError as error:
        why = f"can not be mapped: {error.strerror}"
        if error.errno in _SHORTAGES:
            raise ShmError(f"segments {wish.name!r} {why}") from error
        raise _no_use(wish.name, why) from error
    return _adopt_mapped(wish, owner)


def _adopt_mapped(wish: Wish, owner: Owner) -> Owner | None:
    why_not = owner.why_not()
    if why_not is not None:
        raise _no_use(wish.name, f"are damaged: {why_not}")
    before = owner.header()
    if before["closed"]:
        return None
    other = _other_geometry(wish, owner)
    if other and before["pages"]:
        raise _no_use(wish.name, f"are still warm, with {other}")
    point("segments.sound")
    owner.adopt(_taken(owner))
    point("segments.adopted")
    after = owner.header()
    _tell_of_damage(after["dropped"] - before["dropped"])
    if not other:
        return owner
    if after["pages"]:  # who died while adopting them had counted none yet
        raise _no_use(wish.name, f"are still warm, with {other}")
    log.info("segments %r hold no page, with %s: dropped", wish.name, other, extra=event("leftovers_dropped"))
    return None


def _tell_of_damage(pages: int) -> None:
    if pages:
        log.warning("%d pages were damaged, or half made, and are gone", pages, extra=event("dropped", pages=pages))


def _no_use(name: str, why: str) -> UnfitError:
    return UnfitError(f"segments {name!r} {why}")


def _map(name: str) -> Owner:
    """Maps descriptors of its own: a mapping keeps the file that it was made of open, and a lock on it held."""
    with contextlib.ExitStack() as stack:
        return Owner(*(stack.enter_context(opened(name, kind)) for kind in KINDS))


def _other_geometry(wish: Wish, owner: Owner) -> str:
    """What they have and what is asked for; "" where they will do."""
    have = Geometry.of(owner.header())
    if have == wish.geometry or (wish.will_do is not None and wish.will_do(have)):
        return ""
    return f"{have}; the configuration asks for {wish.geometry}"


def _taken(owner: Owner) -> int:
    """Bits of all slots: what the dead held is taken back later, by whoever knows when nothing can write to it."""
    return sum(1 << taker["slot"] for taker in owner.takers())
