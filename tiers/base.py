"""The interfaces of tiers, places for pages beyond the arena.

A page is a key of KEY_BYTES bytes, its namespace, its size in bytes and ``ceil(size / frame_bytes)`` frames. One worker
process uses a tier, from several threads at once. A tier never returns other bytes than were written under a key.

A Catalogue is a tier whose pages the index knows: this host alone changes it. A Fleet is shared by many hosts: the
index does not know its pages, and the daemon asks for them.
"""

from __future__ import annotations

import enum
import re
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import msgspec

from pagetier.shm._core import HISTORY_BYTES
from pagetier.shm.page_rows import STORED_PAGES, StoredPage
from pagetier.shm.protocol import Space

NO_ROOM = "there is no room: drop pages first"
SKIPPED = "another page of the same write had failed"
TOO_LARGE = "pages are larger than buffers in remote.url: raise it"
UNTRIED = "an earlier page of the same request failed"


class TierError(Exception):
    """The tier cannot be used, or no longer. The message is one sentence for an administrator."""


class DoubtError(TierError):
    """The tier cannot be used, and the state of its files is unknown: the next process to open it must verify it first.

    The tier records this in its folder, unless the disk does not even accept that.
    """


class PageName(NamedTuple):
    """The name of a page in a fleet: the digest of its namespace and its key, KEY_BYTES each."""

    space: bytes
    key: bytes


class Outgoing(msgspec.Struct, frozen=True):
    """A page to write.

    `stamp` is its recency in nanoseconds of the realtime clock, `history` what is known of its uses (HISTORY_BYTES).

    The caller guarantees that there are ``ceil(size / frame_bytes)`` frames, each ``frame_bytes`` long (what follows
    the page's end in the last one is written and never read), and that they do not change before write() returns.
    """

    key: bytes
    space: Space
    size: int
    stamp: int
    frames: Sequence[memoryview]
    history: bytes = bytes(HISTORY_BYTES)


class Incoming(msgspec.Struct, frozen=True):
    """A page to read, and the frames for it.

    `space` is the digest of the page's namespace; a Catalogue does not need it.

    The caller guarantees that the frames are writable, whole and used by nothing else until read() returns. Whatever
    the result, all of their bytes may have been overwritten.
    """

    key: bytes
    size: int
    frames: Sequence[memoryview]
    space: bytes = b""


class Written(msgspec.Struct, frozen=True):
    """The result of a batch of writes, with one element a page.

    Attributes:
        stored: Whether the page is in the tier now.
        reasons: Why it is not, "" if it is; NO_ROOM if pages must be dropped first, SKIPPED if it was not tried,
            TOO_LARGE if no try would help.
        undropped: Why some drops may still be in the tier, "" if all are gone.
        disk_bytes: Bytes passed to the file system or to the fleet, trees and free lists included.
        present: The numbers of pages that were stored before, and were not written again.
        slots: The slots that each page takes, 0 if that is unknown; empty if they follow from the sizes.
    """

    stored: tuple[bool, ...]
    reasons: tuple[str, ...]
    undropped: str = ""
    disk_bytes: int = 0
    present: frozenset[int] = frozenset()
    slots: tuple[int, ...] = ()


class ReadOutcome(enum.Enum):
    """The outcome of a read. The frames hold the page only after EXACT."""

    EXACT = "exact"
    ABSENT = "absent"
    DAMAGED = "damaged"
    FAILED = "failed"


class ReadResult(msgspec.Struct, frozen=True):
    """The result of a read and, where it is neither EXACT nor ABSENT, the reason.

    After DAMAGED the tier returned other bytes than were written, and the page leaves the tier. After FAILED the tier
    did not answer, and the page stays.
    """

    outcome: ReadOutcome
    reason: str = ""


class StoredPages(msgspec.Struct, frozen=True):
    """Some of the pages in a tier.

    Attributes:
        pages: Rows of STORED_PAGES. The stamp of a page is in nanoseconds of the realtime clock.
        table: The namespaces, to whose positions the rows refer.
    """

    pages: bytes
    table: tuple[Space, ...]

    def __len__(self) -> int:
        return STORED_PAGES.count(self.pages)

    def __iter__(self) -> Iterator[StoredPage]:
        return STORED_PAGES.read(self.pages)


class TierState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a catalogue, for people and metrics.

    Attributes:
        file_bytes: The size of the files.
        cap_bytes: The limit of their size.
        used_frames: The frames in use.
        capacity: The frames that fit within the cap.
        disk_free, disk_total: The free and total bytes of the file system.
        last_sync: Nanoseconds of the realtime clock, 0 if there was none.
        clean: Nothing was written since the last sync.
        opened: How the tier was found when it was opened, one line.
        damaged: The number of pages that were dropped because a read returned other bytes than were written.
        note: What an administrator should know or do, "" if nothing.
        slot_bytes: The bytes of a slot if pages are compressed, else 0.
    """

    file_bytes: int
    cap_bytes: int
    used_frames: int
    capacity: int
    disk_free: int
    disk_total: int
    last_sync: int
    clean: bool
    opened: str
    damaged: int = 0
    note: str = ""
    slot_bytes: int = 0


class FleetState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a fleet as this worker sees it, for people and metrics. Counts begin with the worker.

    Attributes:
        url: The store, without secrets.
        lent_bytes: The bytes of bounce buffers in use, those of calls that have not returned included.
        calls: The calls of the store's client that have not returned.
        late: How many calls did not return within their timeout.
        damaged: How many objects did not contain the bytes that were written.
        foreign: How many objects were written with another fleet key.
        present: How many pages were not written because the fleet had them.
        note: What an administrator should know or do, "" if nothing.
    """

    url: str
    lent_bytes: int = 0
    calls: int = 0
    late: int = 0
    damaged: int = 0
    foreign: int = 0
    present: int = 0
    note: str = ""


def shown_url(url: str) -> str:
    """Returns the URL of a fleet, valid or not, for people: without its parameters and without credentials."""
    scheme, _, rest = re.split("[?#]", url, maxsplit=1)[0].partition("://")
    netloc, slash, path = rest.partition("/")
    return f"{scheme}://{netloc.rpartition('@')[2]}{slash}{path}" if rest else ""


class Tier(Protocol):
    """A place for pages. Any thread may call any method at any time until close()."""

    def write(self, drops: Sequence[bytes], pages: Sequence[Outgoing]) -> Written:
        """Drops pages (unknown keys are ignored), then stores pages.

        The caller guarantees that `pages` has no key twice.

        Raises:
            TierError: The tier cannot continue. The process should end, and its successor opens the tier again.
        """

    def read(self, page: Incoming) -> ReadResult:
        """Fills the frames and verifies them. Has priority over writes. A page of another size than asked is ABSENT."""

    def state(self) -> TierState | FleetState:
        """Returns the current state."""

    def close(self) -> None:
        """Releases everything. The caller guarantees that no other call is running or follows."""


class Catalogue(Tier, Protocol):
    """A tier on this host, whose pages the index knows: it reports them when it is opened.

    write() replaces older pages of the same keys. If a page could not be stored, an older one of its key may still be
    there. The death of a process loses nothing that was reported stored; the death of the host loses what was written
    after the last sync(). close() syncs, and raises DoubtError if that fails; everything is released nevertheless.
    """

    @property
    def capacity(self) -> int:
        """The number of frames that fit within the cap, or of slots if pages are compressed.

        Pages beyond it are rejected one by one.

        A page is stored in one environment as a whole: near the limit a large page may be rejected while smaller ones
        fit.
        """

    @property
    def pages(self) -> int:
        """The number of pages. contents() leaves out those whose records are damaged."""

    def contents(self) -> Iterator[StoredPages]:
        """Returns all pages in batches. Pages written or dropped during the walk may or may not be included."""

    def sync(self) -> None:
        """Makes everything that was written durable. Raises DoubtError if that fails."""

    def save_lookups(self, data: bytes) -> None:
        """Keeps what is known of lookups, at the end of the process and as far as there is room."""

    def take_lookups(self) -> bytes | None:
        """Returns what an earlier process kept by save_lookups(), once; None if nothing."""

    def distrust(self) -> None:
        """Records an unexpected failure: the next process to open the tier verifies it first, or empties it."""

    def state(self) -> TierState:
        """Returns the current state."""


class Fleet(Tier, Protocol):
    """A tier that many hosts share. What it contains changes at any time, and each host asks for what it needs.

    write() ignores drops, and keeps the object of a page that is there already.
    """

    def locate(self, names: Sequence[PageName]) -> array[int]:
        """Returns the size of each page in bytes, 0 for those that are not there, as an array of type "Q".

        The answer may be wrong a moment later, in both directions.

        Raises:
            TierError: The fleet did not answer.
        """

    def state(self) -> FleetState:
        """Returns the current state."""
