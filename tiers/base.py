"""What a tier is: a place for pages beyond the arena. One small interface; each store implements it.

A page is a key of 32 bytes, its namespace, its size in bytes and ``ceil(size / frame_bytes)`` frames. A tier is
used by one worker process, by several threads at once. It never hands out other bytes than were written under a key.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from ..shm.protocol import Space

KEY_BYTES = 32
NO_ROOM = "there is no room: drop pages first"


class TierError(Exception):
    """The tier can not be used, or not any more; the message is one sentence for an administrator."""


class DoubtError(TierError):
    """The same, and what is on the disk is not known: who opens the tier next is to prove it first.

    The tier says so itself, to who opens it, unless its disk does not even take that.
    """


class Outgoing(msgspec.Struct, frozen=True):
    """A page to write. stamp: nanoseconds of the realtime clock, its recency.

    The caller guarantees that the frames are ``ceil(size / frame_bytes)``, each ``frame_bytes`` long (what lies
    behind the page's end in the last one is written and never read), and that nobody changes them before write()
    returns.
    """

    key: bytes
    space: Space
    size: int
    stamp: int
    frames: Sequence[memoryview]


class Incoming(msgspec.Struct, frozen=True):
    """A page to read, and the frames for it.

    The caller guarantees that the frames are writable, whole and nobody else's until read() returns. Whatever the
    result, all their bytes may have been overwritten.
    """

    key: bytes
    size: int
    frames: Sequence[memoryview]


class Written(msgspec.Struct, frozen=True):
    """What became of a batch, an element a page.

    stored: whether it is in the tier now; reasons: why not, "" if it is; NO_ROOM if something must be dropped
    first. undropped: why some drops may still be there, "" if all are gone. disk_bytes: what was handed to the
    file system, trees and free lists included.
    """

    stored: tuple[bool, ...]
    reasons: tuple[str, ...]
    undropped: str = ""
    disk_bytes: int = 0


class Outcome(enum.Enum):
    """How a read went. Only after EXACT do the frames hold the page."""

    EXACT = "exact"
    ABSENT = "absent"
    DAMAGED = "damaged"
    FAILED = "failed"


class ReadResult(msgspec.Struct, frozen=True):
    """How a read went and, where it was not EXACT or ABSENT, why.

    DAMAGED: what the disk holds is not what was written; the page leaves the tier. FAILED: the disk did not answer;
    the page stays.
    """

    outcome: Outcome
    reason: str = ""


class Held(msgspec.Struct, frozen=True):
    """Some of the pages that a tier holds, as packed little-endian arrays, an element a page.

    keys: 32 bytes each; sizes and stamps: u64; spaces: u32, an index into `table`, which is this batch's own.
    """

    keys: bytes
    sizes: bytes
    stamps: bytes
    spaces: bytes
    table: tuple[Space, ...]

    def __len__(self) -> int:
        return len(self.keys) // KEY_BYTES


class TierState(msgspec.Struct, frozen=True, kw_only=True):
    """For people and metrics.

    file_bytes: what the files take; cap_bytes: what they may take. used_frames of room. disk_free, disk_total: of
    the file system. last_sync: nanoseconds of the realtime clock, 0 if never. clean: nothing was written since.
    opened: one line, how the tier was found. damaged: pages dropped because their bytes were not what was written.
    note: what an administrator should know or do, "" if nothing.
    """

    file_bytes: int
    cap_bytes: int
    used_frames: int
    room: int
    disk_free: int
    disk_total: int
    last_sync: int
    clean: bool
    opened: str
    damaged: int = 0
    note: str = ""


class Tier(Protocol):
    """A place for pages. Every method may be called by any thread at any time until close()."""

    @property
    def room(self) -> int:
        """How many frames it holds within its cap. Who writes more than that is refused, page by page.

        A page lives in one piece: near the limit a big page may be refused while smaller ones still fit.
        """

    def contents(self) -> Iterator[Held]:
        """All pages that it holds, in batches. Pages written or dropped meanwhile may be in it or not."""

    def write(self, drops: Sequence[bytes], pages: Sequence[Outgoing]) -> Written:
        """Drops pages (unknown keys are fine), then stores pages, in place of older ones of the same keys.

        The caller guarantees that no key is twice among `pages`. A page that could not be stored is told as such;
        an older one of its key may then be there still. A process's death loses nothing that was reported stored,
        a host's death what came after the last sync(). Raises TierError if the tier can not go on at all: the
        process should end, and its successor open the tier anew.
        """

    def read(self, page: Incoming) -> ReadResult:
        """Fills the frames and verifies them. Goes before writing. A page of another size than asked is ABSENT."""

    def sync(self) -> None:
        """Brings what was written to the disk. Raises DoubtError where that fails."""

    def distrust(self) -> None:
        """Something went wrong that must not: who opens the tier next proves it first, or begins anew."""

    def state(self) -> TierState:
        """How it stands."""

    def close(self) -> None:
        """Syncs and lets go of everything. The caller guarantees that no other call runs or follows.

        Raises DoubtError where syncing fails.
        """
