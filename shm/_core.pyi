"""Defines the types of the C core.

An Array is any contiguous buffer of little-endian elements, named as u8, u32, u64.
"""

from collections.abc import Sequence
from enum import IntEnum, IntFlag
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar, final

import numpy.typing as npt
from typing_extensions import Buffer

Array: TypeAlias = Buffer | npt.NDArray[Any]
_Bytes: TypeAlias = bytes
_P = TypeVar("_P", bound=Pins)

MAGIC: int  # the first word of an index
FORMAT: int  # of the segments
KEY_BYTES: int
SLOTS: int  # the most attachments
PARTS: int  # the most parts of a page
GROUPS: int  # the most groups of one match
STATUS_BYTES: int  # the longest status of a daemon
LEAST_FRAME_BYTES: int
DISK_DEVICES: int  # of the disk tier, at most
TENANTS: int  # at most, with the one that has no quota
FRAME: int  # the first byte of a message that is not in msgpack
HISTORY_BYTES: int  # of what is known of the uses of a page on disk
LOCKS_OFFSET: int  # of the first lock word in its segment
NO_ENTRY: int  # in place of an entry's number: the page was not granted

class ReserveOutcome(IntEnum):
    """The outcome of one page of reserve() (LEFT_OUT) or fetch() (ABSENT, GRANTED_TO_FLEET)."""

    GRANTED = ...
    PRESENT = ...
    PENDING = ...
    REFUSED_FULL = ...
    REFUSED_SIZE = ...
    ABSENT = ...
    LEFT_OUT = ...
    GRANTED_TO_FLEET = ...

class EventsResult(IntEnum):
    """What read_events() found.

    OFF: nothing is recorded, because the daemon has not noticed the reader yet, the disk tier changes or memory is
    short. MISSED: any page may have changed; all later changes have events. READ: the events of all changes.
    """

    OFF = ...
    MISSED = ...
    READ = ...

class EventReason(IntEnum):
    """Why a page left a tier (EVICTED, FLUSHED, LOST) or came into it (STORED, WRITTEN)."""

    EVICTED = ...
    FLUSHED = ...
    LOST = ...
    STORED = ...
    WRITTEN = ...

class Absence(IntEnum):
    """Why a page was not found, as far as the history of sampled keys says.

    EVICTED_FROM_MEMORY: it was not on disk, or was left out as it was not worth its room. DROPPED: flushed, damaged, or
    its store was refused or given up. IN_OTHER_NAMESPACE: an engine's own hash is stored under another namespace.
    """

    NEVER_STORED = ...
    EVICTED_FROM_MEMORY = ...
    EVICTED_FROM_DISK = ...
    DROPPED = ...
    IN_OTHER_NAMESPACE = ...

class HintKind(IntEnum):
    """What is known of a page's session: it is over, or returns within so many seconds, or later.

    KEEP and UNKEEP are no property of a session: pages that are to stay, and the end of that.
    """

    NONE = ...
    OVER = ...
    WITHIN_20 = ...
    WITHIN_60 = ...
    WITHIN_300 = ...
    LATER = ...
    KEEP = ...
    UNKEEP = ...

class WriteRule(IntEnum):
    """Which pages are written to disk: those about to be evicted, all at once, or evicted ones that were used again."""

    EVICTED = ...
    THROUGH = ...
    SECOND = ...

class WriteResult(IntEnum):
    """The result of one write. FAILED and SKIPPED: it is not tried again; AGAIN: no write was attempted."""

    FAILED = ...
    DONE = ...
    SKIPPED = ...
    AGAIN = ...

class TierFlag(IntFlag):
    """The tiers of a page or of a flush."""

    MEMORY = ...
    DISK = ...
    BOTH = ...

class IdleResult(IntEnum):
    """The result of drop_idle(). MORE: call again; DROPPED: a namespace has no pages any more."""

    NOTHING = ...
    MORE = ...
    DROPPED = ...

@final
class IndexHeader(NamedTuple):
    """The numbers of pt_header (core/common/layout.h), and the counters of the daemon."""

    magic: int
    segments_id: int
    incarnation: int
    spaces: int
    closed: int
    index_bytes: int
    locks_bytes: int
    arena_bytes: int
    frame_bytes: int
    frames: int
    entries: int
    free_frames: int
    free_entries: int
    open_entries: int
    pages: int
    bytes: int
    used_frames: int
    disk_frames: int
    disk_used_frames: int
    disk_pages: int
    disk_bytes: int
    at_histories: int
    granted: int
    present: int
    pending: int
    refused: int
    evicted: int
    evicted_bytes: int
    flushed: int
    doomed: int
    expired: int
    deaths: int
    adopted: int
    dropped: int
    disk_written: int
    disk_written_bytes: int
    disk_read: int
    disk_read_bytes: int
    disk_missed: int
    disk_evicted: int
    disk_evicted_bytes: int
    disk_flushed: int
    disk_lost: int
    disk_skipped: int
    disk_damaged: int
    disk_failed: int

@final
class AttachmentCounts(NamedTuple):
    """The counters of one attachment, or of all (pt_counts and pt_uses in core/common/layout.h)."""

    lookups: int
    hit_pages: int
    miss_pages: int
    loaded_pages: int
    loaded_bytes: int
    stored_pages: int
    stored_bytes: int
    lost_pages: int
    memory_tokens: int
    disk_tokens: int
    missed_tokens: int
    load_ns: int
    store_ns: int
    bounded: int
    remote_tokens: int
    memory_slower_tokens: int
    disk_slower_tokens: int
    remote_slower_tokens: int

@final
class AttachmentRecord(NamedTuple):
    """One attachment. `pins` and `pinned_bytes` are 0 where the pins were not counted.

    `pid` is 0 if the daemon that attached the process did not see it.
    """

    slot: int
    pid: int
    uid: int
    started: int
    token: int
    attached_ns: int
    pins: int
    pinned_bytes: int
    name: str
    counts: AttachmentCounts
    kernel_id: int
    lock: int

@final
class NamespaceRecord(NamedTuple):
    """One namespace (pt_space in core/common/layout.h)."""

    number: int
    digest: _Bytes
    name: str
    pages: int
    bytes: int
    disk_pages: int
    disk_bytes: int
    disk_stored: int
    listed: int
    used_ns: int
    page_tokens: int
    window: int
    group: int
    tenant: int

@final
class ReservedPages(NamedTuple):
    """The answer for each page: a ReserveOutcome (u8), its entry (u32) and its serial (u64)."""

    outcomes: bytes
    entries: bytes
    serials: bytes

@final
class SeenEvents(NamedTuple):
    """What came and left, in order: for each event the key, and one byte each for the other fields.

    An event only says that something has changed: locate() returns where the page is now.

    Attributes:
        result: An EventsResult. Only READ has events, a few thousand at most.
        keys: KEY_BYTES each.
        tiers: The tier, a TierFlag.
        came: 1 if the page came into the tier, 0 if it left.
        reasons: An EventReason.
    """

    result: int
    keys: bytes
    tiers: bytes
    came: bytes
    reasons: bytes

@final
class FlushedPages(NamedTuple):
    """The pages that a flush dropped, and those that it kept because they are in use."""

    dropped: int
    kept: int

@final
class KeptPages(NamedTuple):
    """What is kept: frames of pages that are evicted last, and the keeps that ended before their time."""

    frames: int
    ended_early: int

class ClaimedSlots(NamedTuple):
    """What records say of slots.

    Attributes:
        wrong: The keys of records that are damaged or name slots that do not exist.
        losers: The marks of writes of whose records a newer one names a slot, too.
        beyond: How many of the wrong ones are not damaged.
        newest: The newest serial of a valid record, 0 if there is none.
    """

    wrong: list[bytes]
    losers: list[int]
    beyond: int
    newest: int

class UnwrittenPages(NamedTuple):
    """The pages and bytes still to be written by the present rule, and the pages that stay in memory only."""

    pages: int
    bytes: int
    skipped: int

@final
class DeviceUsage(NamedTuple):
    """The pages and the slots of a device of the disk tier, and the tick of its coldest page, 0 if it has none.

    `ordered_slots` are reserved for pages that are being written. A device that is not open has no slots.
    """

    open: int
    slots: int
    used_slots: int
    ordered_slots: int
    slot_bytes: int
    pages: int
    bytes: int
    coldest: int

@final
class SampledLookups(NamedTuple):
    """What the daemon knows of lookups.

    Attributes:
        share: The share of keys that are sampled.
        seconds: The time since the first lookup.
        records: Lookups that were counted.
        lost: Lookups that found no room in their process's ring.
        hit_pages: Pages that lookups found; older lookups count less, as in the next two.
        miss_pages: Pages that lookups did not find.
        stored_pages: Those of them that were stored afterwards.
        absent_ever: Tokens that were not found, by Absence, since the segments were created.
    """

    share: float
    seconds: float
    records: int
    lost: int
    hit_pages: float
    miss_pages: float
    stored_pages: float
    absent_ever: tuple[float, ...]

@final
class LookupCurve(NamedTuple):
    """What the lookups of a namespace, or of all, found and would find. Older lookups count less.

    Attributes:
        digest: The beginning of the namespace's digest; zeros: all namespaces.
        found: Tokens in pages that were found.
        missed: Tokens in pages that were not found and were stored then.
        ratios: For each of the sizes, the share of tokens that an LRU cache of that size has.
        endless: The same for an endless cache.
        absent: Tokens of sampled lookups that were not found, by Absence.
    """

    digest: bytes
    found: float
    missed: float
    ratios: tuple[float, ...]
    endless: float
    absent: tuple[float, ...]

@final
class Eviction(NamedTuple):
    """The order in which pages leave the arena, and what it did since adopt().

    Attributes:
        learns: The policy that learns when pages return is in use.
        learned: It has learned enough to choose.
        follows_lru: It evicts the least recently used page for now, since that would hit more.
        left_out: Pages that were not stored, because those in the arena are expected to be used sooner.
        switches: Changes of follows_lru.
    """

    learns: bool
    learned: bool
    follows_lru: bool
    left_out: int
    switches: int

@final
class IdleStep(NamedTuple):
    """The result of drop_idle(): `pages` of the present namespace were dropped so far.

    `namespace` is the one that has no pages left, if there is one.
    """

    result: IdleResult
    pages: int
    namespace: NamespaceRecord | None

@final
class SegmentSizes(NamedTuple):
    """The bytes of each segment, and offset and bytes of the ring of events in the index."""

    index_bytes: int
    locks_bytes: int
    arena_bytes: int
    at_events: int
    events_bytes: int

@final
class StructLayout(NamedTuple):
    """The bytes of a struct in C, and the name, offset and bytes of each of its fields."""

    size: int
    fields: tuple[tuple[str, int, int], ...]

PLANE_LAYOUT: StructLayout  # pt_plane (core/client/copy_tables.h)
TOKENS_LAYOUT: StructLayout  # pt_tokens (core/client/copy_tables.h)
LOCK_LAYOUT: StructLayout  # pt_lock (core/common/layout.h)
HISTORY_LAYOUT: StructLayout  # pt_history (core/common/layout.h), without its bit fields
DISK_HISTORY_LAYOUT: StructLayout  # pt_disk_history (core/daemon/cadence/disk_history.h)
LISTED_LAYOUT: StructLayout  # pt_listed (core/client/locate.h)
PAGE_REQUEST_LAYOUT: StructLayout  # pt_page_request (core/daemon/requests.h)
PAGE_TO_FIND_LAYOUT: StructLayout  # pt_page_to_find (binding/page_rows.h)
LOCATED_PAGE_LAYOUT: StructLayout  # pt_located_page (binding/page_rows.h)
PAGE_ANSWER_LAYOUT: StructLayout  # pt_answer (core/daemon/requests.h)
PAGE_TO_WRITE_LAYOUT: StructLayout  # pt_page_to_write (binding/page_rows.h), without its last field
PAGE_TO_READ_LAYOUT: StructLayout  # pt_page_to_read (binding/page_rows.h), without its last field
STORED_PAGE_LAYOUT: StructLayout  # pt_stored_page (core/daemon/disk_records.h)
HEAD_LAYOUT: StructLayout  # the fields of pt_header that every format has (core/common/layout.h)

class ShmError(Exception):
    """The segments cannot be used; the message says why."""

def plan(frame_bytes: int, frames: int, entries: int, spaces: int, /) -> SegmentSizes:
    """Returns the sizes in bytes of index, lock words and arena."""

def keys_of_hashes(hashes: list[bytes] | tuple[bytes, ...], digest: bytes, /) -> bytes:
    """Returns each hash XOR the digest, end to end; all of them have KEY_BYTES. Raises TypeError and ValueError."""

_Prompts = tuple[tuple[int, _Bytes, int], ...] | None

def pack_reserve(
    number: int,
    digest: _Bytes,
    name: str,
    page_tokens: int,
    group: int,
    window: int,
    part: int,
    parts: int,
    pages: Array,
    division: int,
    prompts: _Prompts,
    hint: int,
    hint_ttl_ns: int,
    /,
) -> _Bytes:
    """Returns a request for a reservation as a message with its length; see core/daemon/reserve_message.h."""

def read_reserve(
    body: Array, /
) -> tuple[int, _Bytes, str, int, int, int, int, int, _Bytes, int, _Prompts, int, int] | None:
    """Returns what pack_reserve() was given; None if the body of a message is no request for a reservation."""

def pack_reserved(number: int, pages: Array, reason: str, /) -> _Bytes:
    """Returns the response to a reservation as a message with its length. A long reason is cut."""

def read_reserved(body: Array, /) -> tuple[int, _Bytes, str] | None:
    """Returns what pack_reserved() was given; None if the body of a message is no response to a reservation."""

def pages_to_find(keys: Array, spaces: Array, /) -> _Bytes:
    """Returns rows of PAGE_TO_FIND_LAYOUT with these keys (KEY_BYTES each) and namespaces (u32)."""

def located_pages(keys: Array, sizes: Array, spaces: Array, /) -> _Bytes:
    """Returns rows of LOCATED_PAGE_LAYOUT with these keys (KEY_BYTES each), sizes (u64) and namespaces (u32)."""

def located_columns(pages: Array, /) -> tuple[_Bytes, _Bytes]:
    """Returns the keys (KEY_BYTES each) and the sizes (u64) of rows of LOCATED_PAGE_LAYOUT."""

def spaces_below(pages: Array, limit: int, /) -> bool:
    """Returns whether the namespace of each row of PAGE_TO_FIND_LAYOUT is below the limit."""

def page_names(pages: Array, prefixes: list[str], /) -> list[str]:
    """Returns for each row of PAGE_TO_FIND_LAYOUT the prefix of its namespace and its key in hexadecimal digits.

    Raises IndexError for a namespace without a prefix.
    """

def answer_columns(pages: Array, /) -> ReservedPages:
    """Returns the fields of rows of PAGE_ANSWER_LAYOUT, each as an array."""

def page_requests(keys: Array, sizes: Array, /) -> _Bytes:
    """Returns rows of PAGE_REQUEST_LAYOUT, of pages with these keys (KEY_BYTES each) and sizes (u64 each)."""

def miss(kind: type[_P], context: object, asked: int, /) -> _P:
    """Returns an empty match, for callers without a session."""

def compress(parts: Sequence[Array], out: Array, /) -> int:
    """Compresses a page of 16-bit floats without loss; other pages become a little longer.

    Args:
        parts: The bytes of the page, in order. They do not change during the call.
        out: Gets the compressed page.

    Returns:
        The bytes that were written; 0 if they are more than `out` has.
    """

def expand(data: Array, parts: Sequence[Array], /) -> bool:
    """Fills the parts of a page from what compress() wrote, and zeros after it.

    Returns whether `data` was that, for a page of this size. Any data is safe, also if another process changes it; the
    parts have undefined bytes after False.
    """

_Records: TypeAlias = list[tuple[_Bytes, _Bytes]]  # of pages in LMDB: keys and values (tiers/disk/file_format.py)

def keys_ascend(records: _Records, after: _Bytes, /) -> bool:
    """Returns whether each key is greater than the one before it, and the first one than `after`."""

def frames_named(records: _Records, frame_bytes: int, /) -> int | None:
    """Returns how many frames records of the lmdb store name; None if extents and size of one of them disagree."""

def stored_pages(records: _Records, format: int, largest_page: int, slot_bytes: int, /) -> bytearray:
    """Returns rows of STORED_PAGE_LAYOUT of the records that are valid in a tier of this format.

    The number of a namespace is that of the record: any.
    """

def claim_slots(records: _Records, slot_bytes: int, owners: Array, /) -> ClaimedSlots:
    """Gives slots to the writes whose records name them.

    Args:
        records: Records of the files store.
        slot_bytes: The bytes of a slot.
        owners: The mark of the write that owns each slot, 0 for a free one (u32). Changed: a slot that several
            records name gets that of the newest one of them, and may keep that of a loser. A mark is the serial of the
            write, beginning again with 1 after 2^32 - 1.
    """

def compresses_fast() -> bool:
    """Returns whether this processor has the vector instructions (AVX2) of compress() and expand()."""

def gather(
    arena: int,
    arena_bytes: int,
    frame_bytes: int,
    frames: Array,
    planes: Array,
    pages: Array,
    blocks: Array,
    block_tokens: int,
    skip: Array,
    threads: int,
    /,
) -> None:
    """Copies tokens of pages from a strided cache into frames of an arena in memory.

    Invalid tables are rejected with a ValueError before any byte is copied. The addresses must be valid memory, which
    is not checked.

    Args:
        arena: Address of the arena.
        arena_bytes: Its size.
        frame_bytes: The size of a frame.
        frames: u32, the same number of frames for each page.
        planes: Rows of PLANE_LAYOUT.
        pages: Rows of TOKENS_LAYOUT.
        blocks: i32, the flat table of blocks.
        block_tokens: Tokens of a block.
        skip: u8, one flag for each page (1: skip the page), or empty.
        threads: At most so many threads copy, including the calling one.
    """

def scatter(
    arena: int,
    arena_bytes: int,
    frame_bytes: int,
    frames: Array,
    planes: Array,
    pages: Array,
    blocks: Array,
    block_tokens: int,
    skip: Array,
    threads: int,
    /,
) -> None:
    """Copies tokens of pages from frames of an arena into a strided cache; the arguments are those of gather()."""

def check_slots(page_tokens: int, block_tokens: int, pages: Array, blocks: Array, skip: Array, /) -> None:
    """Checks that all tokens lie within their pages, and those that are copied within the table of blocks.

    Args:
        page_tokens: Tokens of a page.
        block_tokens: Tokens of a block.
        pages: Rows of TOKENS_LAYOUT.
        blocks: i32, the flat table of blocks.
        skip: u8, one flag for each page (1: skip the page), or empty.

    Raises:
        ValueError: They do not.
    """

def check_blocks(cache_blocks: int, block_tokens: int, pages: Array, blocks: Array, skip: Array, /) -> None:
    """Checks that a cache of `cache_blocks` blocks has all blocks of the pages that are copied.

    The other arguments are those of check_slots().

    Raises:
        ValueError: It lacks one, or a page lies outside of the table of blocks.
    """

def check_blocks_apart(cache_blocks: int, block_tokens: int, pages: Array, blocks: Array, skip: Array, /) -> None:
    """Checks the same as check_blocks(), and that no token of the cache would be written twice.

    Raises:
        ValueError: As for check_blocks(), or two pages have a token in common, or a block is at two places that are
            copied.
    """

class Pins:
    """The pages of one match, pinned until release(), which may be called more than once. Also a context manager.

    entries (u32) and serials (u64) identify the pages forever; another process can pass them to repin().
    """

    @property
    def asked(self) -> int: ...
    @property
    def available_pages(self) -> int:
        """The number of pages of the prefix in memory or on disk. Only the first len() of them are pinned."""
    @property
    def from_disk(self) -> int:
        """The number of pages that were on disk at the time of the match and were counted as loaded since."""
    @property
    def pinned(self) -> bool: ...
    @property
    def entries(self) -> bytes: ...
    @property
    def serials(self) -> bytes: ...
    @property
    def sizes(self) -> bytes:
        """The bytes of each page (u64); empty after release()."""
    @property
    def session(self) -> Session | None: ...
    @property
    def context(self) -> Any: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def release(self) -> None:
        """Unpins the pages. Pages after the pinned ones that were not counted as loaded are counted as missed."""
    def count_loaded(self, pages: int, /) -> None:
        """Counts the tokens after the pinned pages once the first `pages` pages of the match were loaded.

        Each page is counted once, in the tier where the match found it; pages of a rematch are counted in its first
        match.
        """
    def count_later(self, tokens: int, /) -> None:
        """Makes a match of groups count as a lookup: by the pins of its first group.

        So many tokens after the hit are only on disk. They count as missed at the release, unless they were loaded by
        then.
        """
    def count_from_disk(self, tokens: int, /) -> None:
        """Counts the first ones of the tokens of count_later() as loaded from disk, each once."""
    def count_slower(self, on_disk: int, remote: int, /) -> None:
        """Records the tokens that are computed because loading them from the disk or the fleet is slower.

        They are counted at the release, those on disk unless they were loaded by then. A second call replaces the
        first one's; those of a rematch belong to its first match. A match that is no lookup counts none.
        """

@final
class Session:
    """An attached process: maps the index read-only, lock words and arena for reading and writing.

    Usable from any thread.

    The descriptors may be closed afterwards. In a forked child, and after retire(), every call is a miss.

    Raises:
        ShmError: The segments have another format.
        OSError: The segments cannot be mapped.
    """

    def __init__(self, index_fd: int, locks_fd: int, arena_fd: int, slot: int) -> None: ...
    @property
    def usable(self) -> bool: ...
    @property
    def closed(self) -> bool:
        """Whether the daemon was stopped for good or the handle is not usable: the caller should unmap the memory."""
    @property
    def segments_id(self) -> int: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def frame_bytes(self) -> int: ...
    @property
    def arena_bytes(self) -> int: ...
    @property
    def arena_address(self) -> int:
        """The address of the arena in this process; 0 if the handle is not usable."""
    @property
    def disk_bytes(self) -> int:
        """The largest size of the disk tier; 0 without one."""
    @property
    def disk_complete(self) -> bool:
        """Whether the disk tier is open, and all its pages are in the index."""
    @property
    def asks_fleet(self) -> bool:
        """Whether pages that no tier of this host has should be located in the fleet: its circuit breaker is closed."""
    @property
    def slot(self) -> int: ...
    def match(self, kind: type[_P], context: object, keys: Array, page_tokens: int = 0, /) -> _P:
        """Pins the longest readable prefix of keys and finds how far it continues in memory or on disk.

        It counts as a lookup. Tokens from the first page on disk on are counted later: as found by count_loaded(), or
        as missed by release().

        Args:
            kind: The class of the result.
            context: Kept by the result for the caller.
            keys: KEY_BYTES each, head first.
            page_tokens: Tokens of a page, for the statistics.
        """
    def rematch(self, kind: type[_P], context: object, keys: Array, first: Pins, /) -> _P:
        """Matches again for the request that `first` was matched for, and counts nothing."""
    def match_groups(
        self, kind: type[_P], groups: tuple[tuple[Any, Array, int, int], ...], limit: int, /
    ) -> tuple[int, int, int, tuple[_P, ...]]:
        """Pins the pages of the longest hit, at most `limit` tokens, on which all groups agree; see match_groups.h.

        It counts nothing: see count_lookup().

        Args:
            kind: The class of the pins.
            groups: (context, keys, page_tokens, needs) of each group; 1 to GROUPS groups.
            limit: No hit is longer, in tokens.

        Returns:
            The tokens of the hit; the tokens of the hit including pages on disk; the tokens of the longest hit for
            which there are keys; and for each group the pins of the pages that it needs, whose context is
            context[first:end].
        """
    def repin(self, kind: type[_P], context: object, entries: Array, serials: Array, /) -> _P:
        """Pins what another process matched, up to the first page that is gone."""
    def copy_out(self, pins: Pins, first: int, addresses: Array, sizes: Array, threads: int, /) -> int:
        """Copies whole pinned pages from `first` on to memory at addresses (u64), sizes (u64) bytes each.

        Returns how many pages were copied; it stops at a page of another size. The memory must stay valid.
        """
    def copy_in(self, entries: Array, addresses: Array, sizes: Array, offset: int, threads: int, /) -> int:
        """Copies memory into pages that were granted to this process, from byte `offset` of each page on.

        Returns how many pages were copied; it stops at a page that was not granted or is too small.
        """
    def gather(
        self,
        entries: Array,
        page_bytes: int,
        planes: Array,
        pages: Array,
        blocks: Array,
        block_tokens: int,
        skip: Array,
        threads: int,
        /,
    ) -> int:
        """Copies a strided cache into granted pages of page_bytes bytes; the tables are those of the module.

        Returns how many pages from the first one on were done, including skipped ones; it stops at a page of another
        size.
        """
    def scatter(
        self,
        pins: Pins,
        first: int,
        page_bytes: int,
        planes: Array,
        pages: Array,
        blocks: Array,
        block_tokens: int,
        skip: Array,
        threads: int,
        /,
    ) -> int:
        """Copies pinned pages from `first` on into a strided cache. Returns the same as gather()."""
    def publish(self, entries: Array, serials: Array, part: int, /) -> bytes:
        """Finishes a part of granted pages and releases them. Returns a u8 for each: 1 stored, 0 doomed before."""
    def abandon(self, entries: Array, serials: Array, part: int, /) -> None:
        """Releases a part of granted pages without finishing it: these pages will never be readable."""
    def frames(self, entry: int, /) -> bytes:
        """Returns the frames (u32) of a page that the caller has pinned or was granted; b"" if the list is damaged."""
    def populate(self, offset: int, length: int, /) -> None:
        """Maps a range of the arena before its first use."""
    def populate_index(self) -> None:
        """Maps index and lock words before the first match."""
    def count_apart(self) -> None:
        """Leaves what this session does from now on out of the counters: a probe is no traffic.

        Call it before the first match, load or store.
        """
    def count_time(self, load_ns: int, store_ns: int, /) -> None:
        """Counts the time of copies that another library made, for the statistics."""
    def count_lookup(
        self,
        hit_pages: int,
        miss_pages: int,
        memory_tokens: int,
        disk_tokens: int,
        missed_tokens: int,
        remote_tokens: int = 0,
        memory_slower_tokens: int = 0,
        disk_slower_tokens: int = 0,
        remote_slower_tokens: int = 0,
        /,
    ) -> None:
        """Counts one request's lookup over several groups."""
    def sample(self, keys: Array, found: int, /) -> None:
        """Leaves a lookup of a group for the daemon's curve; match() does so itself. Sends no message.

        Args:
            keys: The keys from the first page of the prompt on.
            found: How many of them, from the first on, were found in memory or on disk.
        """
    def count_loaded(self, pages: int, bytes: int, /) -> None:
        """Counts what others, such as a GPU, copied from pages that this process had pinned, for the statistics."""
    def retain_arena(self) -> None:
        """Keeps the arena mapped until release_arena(), for a user that this process cannot wait for, such as a GPU."""
    def release_arena(self) -> None:
        """Ends one retain_arena(). Raises RuntimeError if there is none."""
    def read_events(self) -> SeenEvents:
        """Returns what came and left since the last call. From the first call on the daemon records it."""
    def locate(self, keys: Array, /) -> bytes:
        """Returns the TierFlag of each page, one byte each; 0 for a page that is in no tier.

        It pins nothing and does not count as a use. A page that comes or leaves at the same time has an event later.
        """
    def retire(self) -> bool:
        """Closes the handle and releases all its pins.

        Returns False, without effect, while a thread copies or the arena is retained.
        """

@final
class Observer:
    """Reads index and lock words through read-only mappings.

    While the daemon works, the numbers may not fit each other.
    """

    def __init__(self, index_fd: int, locks_fd: int) -> None: ...
    def header(self) -> IndexHeader: ...
    def counts(self) -> AttachmentCounts: ...
    def attached(self) -> int:
        """Returns the number of attachments, without their records."""
    def attachments_with_pins(self) -> list[AttachmentRecord]: ...
    def spaces(self) -> list[NamespaceRecord]: ...
    def lookups(self) -> SampledLookups | None:
        """Returns what is known of lookups; None if the segments have no curve, or no daemon counts lookups yet."""
    def curves(self, sizes: Array, /) -> list[LookupCurve]:
        """Returns the curve of all namespaces, then those of the namespaces that have their own.

        Args:
            sizes: f64, sizes of the cache in frames.
        """
    def status(self) -> bytes | None:
        """Returns the status that the disk tier reports; None while it is being changed: call it again."""
    def locate(self, keys: Array, /) -> _Bytes:
        """Returns the tiers of each page now, a TierFlag (u8). Nothing is pinned, stamped or counted."""
    def pages(self, space: int, start: int = ..., entries: int = ..., /) -> _Bytes:
        """Returns the pages of a namespace in `entries` entries of the index from `start` on, rows of LISTED_LAYOUT.

        Walks these entries: by default all, which takes a tenth of a second for a million. In an event loop,
        `daemon/stats/page_lookup.py` walks slices.
        """

@final
class Owner:
    """The daemon's access to the segments. All calls come from one thread, except populate(); no call blocks."""

    def __init__(self, index_fd: int, locks_fd: int, arena_fd: int) -> None: ...
    def format(self, frame_bytes: int, frames: int, entries: int, spaces: int, segments_id: int, build: str, /) -> None:
        """Formats new segments in memory that is all zero."""
    def unusable_reason(self) -> str | None:
        """Returns why this build cannot adopt the segments; None if it can."""
    def attachments(self) -> list[AttachmentRecord]:
        """Returns the attachments that have a slot. Before adoption the caller has to find out which processes live."""
    def adopt(self, alive: int, /) -> None:
        """Adopts the segments: derives everything from the entries.

        All other calls need it, except format, unusable_reason, attachments, header and the populating calls.

        Args:
            alive: Bits of the slots whose process lives.
        """
    def populate(self, offset: int, length: int, /) -> None:
        """Allocates a range of the arena; raises OSError if memory is short. May be called from any thread."""
    def populate_index(self, at_events: int, events_bytes: int, share: int, shares: int, /) -> None:
        """Allocates one of equal shares of the lock words, and of the index except for the ring of events.

        May be called from any thread.

        Raises:
            OSError: Memory is short.
        """
    def serve_events(self) -> None:
        """Records what comes and leaves while processes read it.

        Raises:
            OSError: There is no memory for the ring of events: nothing is recorded.
        """
    def learn_returns(self) -> None:
        """Lets the policy that learns when pages return choose what leaves the arena. No effect if it does already."""
    def forget_returns(self) -> None:
        """Lets the least recently used page leave the arena first, as after adopt()."""
    def read_lookups(self, window_ns: int, /) -> None:
        """Reads what processes looked up. Raises MemoryError if memory is short.

        Args:
            window_ns: Lookups of this age count 1/e.
        """
    def save_lookups(self) -> bytes:
        """Returns what is known of lookups, for restore_lookups() of an owner of other segments; b"" if nothing is."""
    def restore_lookups(self, saved: Buffer, /) -> bool:
        """Continues what save_lookups() returned, unless more is known already. Raises MemoryError if memory is short.

        Returns:
            False if the bytes are damaged, or were saved by a build with another format or with other frames.
        """
    def eviction(self) -> Eviction:
        """Returns which order is in force."""
    def allocate_lazily(self, arena_fd: int, /) -> None:
        """Grants frames from now on only after their memory was allocated; if there is none, pages are evicted.

        It is for an arena that is not populated. Raises OSError without a further descriptor.

        Args:
            arena_fd: The file of the arena, which the caller closes: memory is allocated without mapping it, in small
                pages. -1: through the mapping, which may get huge pages.
        """
    def mappings(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Returns address and bytes of the mapped index, lock words and arena."""
    def header(self) -> IndexHeader: ...
    def spaces(self) -> list[NamespaceRecord]: ...
    @property
    def free_frames(self) -> int: ...
    @property
    def lacks_memory(self) -> bool:
        """Whether the last frame could not be allocated because memory is short; see allocate_lazily()."""
    @property
    def open_entries(self) -> int: ...
    def attach(
        self, pid: int, uid: int, started: int, token: int, name: str, kernel_id: int = 0, lock: int = 0, /
    ) -> int:
        """Returns the slot of an attachment, its present one if it has one; -1 if all slots are taken."""
    def keep_only(self, slot: int, serials: Array, /) -> None:
        """Releases everything that was granted to a slot, except the serials (u64) that its process lists."""
    def reap(self, slot: int, /) -> None:
        """Frees the slot of a process that died or detached, and releases everything that it had.

        Pages of which only such processes have parts are dropped unless they are complete.
        """

    def space(self, digest: bytes, name: str, page_tokens: int, window: int, group: int, /) -> int:
        """Returns the number of a namespace, created on first use; -1 if all namespaces of a full table have pages.

        The number means this namespace only until the next iteration of the event loop, unless the namespace has pages.
        """

    def spare_spaces(self) -> int:
        """Returns how many more namespaces the table has room for."""

    def drop_idle(self, idle_ns: int, budget: int, /) -> IdleStep:
        """Drops namespaces that were not used for idle_ns, the oldest first. It checks about `budget` pages."""
    def reserve(
        self, slot: int, space: int, ttl_ns: int, refused: int, message: Array, /
    ) -> tuple[_Bytes, int, int, int, int, int]:
        """Responds to a reservation that was checked; see core/daemon/reserve.h.

        A hint of KEEP or UNKEEP counts as NONE. LEFT_OUT is answered only if there are prompts.

        Args:
            slot: The slot of the writer.
            space: The number of the pages' namespace; that in the message is not read.
            ttl_ns: The reservations expire after this time.
            refused: So many pages at the end are refused, and count as missed.
            message: The message with its length.

        Returns:
            As serve_reserve(), with 0 frames. The pages that the call refuses count as no page without room.

        Raises ValueError if the message is none, or has invalid parts or prompts.
        """
    def serve_reserve(
        self, slot: int, ttl_ns: int, most_frames: int, nbytes: int, message: Array, /
    ) -> tuple[_Bytes, int, int, int, int, int] | None:
        """Responds to the usual reservation in the bytes of its message; see core/daemon/reserve_message.h.

        Args:
            slot: The slot of the writer.
            ttl_ns: The reservations expire after this time.
            most_frames: The pages may need so many frames.
            nbytes: The bytes of the message, at the beginning of `message`.
            message: The message with its length.

        Returns:
            The message with the response, which has no reason; the frames of all pages; the pages that were granted;
            their bytes; the pages that found no room (REFUSED_FULL); and the size of the first page that never fits
            (REFUSED_SIZE), -1 if there is none. None, and nothing has changed, if the message is another one or
            invalid, has a hint, or the pages need more frames.
        """
    def frames_for(self, pages: Array, /) -> int:
        """Returns the frames that rows of PAGE_REQUEST_LAYOUT need, 2**64-1 if they are more."""
    def set_quotas(self, quotas: Array, patterns: list[str], /) -> None:
        """Puts quotas in force, and derives what each tenant uses: a walk over all entries.

        Args:
            quotas: For each tenant least and most of the arena, then of each device of the disk (f64). The first has
                all namespaces that no pattern matches; its numbers are ignored, it has no limits.
            patterns: The names of the namespaces of each other tenant, as for fnmatch(3). The first match counts.

        Raises MemoryError, and changes nothing, if memory is short.
        """
    def trim(self, limit: int, /) -> int:
        """Evicts at most `limit` pages of tenants that have more than their maximum; returns how many it evicted."""
    def tenants(self) -> list[tuple[int, int]]:
        """Returns the frames of the arena and those of all devices that each tenant has."""
    def tenant_of(self, name: str, /) -> int:
        """Returns the tenant of the namespaces with this name."""
    def quota_refusal(self) -> tuple[int, int]:
        """Returns which quotas are why pages of the last reserve() were refused.

        Returns:
            The tenant that stored them, if it has its maximum, or 0; and otherwise, as bits, the tenants that have no
            more than their minimum.
        """
    def mark_hurries(self, ahead: int, /) -> bool:
        """Marks the tenants that are about to evict unwritten pages, because their maximum leaves no others.

        Of the whole arena `ahead` frames are to be free or written, and as large a share of their part. Pages of such
        tenants are written first from now on. Returns whether there are any.
        """
    def hint(self, hint: HintKind, ttl_ns: int, keys: Array, /) -> int:
        """Gives the pages that exist a hint other than KEEP and UNKEEP; returns their number. 0 with the policy lru.

        The hint counts until the next store that uses the page, or until it expires: see reserve().
        """
    def keep(self, uid: int, ttl_ns: int, most_frames: int, space: int, keys: Array, /) -> int:
        """Keeps pages that are in memory: they are evicted last. Returns how many are kept; 0 with the policy lru.

        Args:
            uid: The user who keeps them.
            ttl_ns: They are kept for this time; 2**64-1: until unkeep().
            most_frames: The limit of all keeps. The oldest keeps of the user that keeps most end for new ones.
            space: Only pages of this namespace; NO_ENTRY: of any.
            keys: KEY_BYTES each, head first.
        """
    def unkeep(self, uid: int, space: int, keys: Array, /) -> int:
        """Ends the keep of pages. Returns how many of them exist and are not kept now.

        Args:
            uid: Only pages that this user keeps; NO_ENTRY: that any user keeps.
            space: Only pages of this namespace; NO_ENTRY: of any.
            keys: KEY_BYTES each.
        """
    def keep_at_most(self, frames: int, /) -> None:
        """Ends keeps, the oldest of the user that keeps most first, until so many frames are kept."""
    def kept(self) -> KeptPages:
        """Returns what is kept now."""
    def keys_in_memory(self, space: int, /) -> _Bytes:
        """Returns the keys of a namespace's pages in memory, those that were stored first first."""
    @property
    def learns(self) -> bool:
        """Whether the policy that learns when pages return is in force: see learn_returns()."""
    def process_of(self, slot: int, /) -> tuple[int, int]:
        """Returns the process that has a slot, as 0 and its kernel ID, or without one as pid and start time.

        Both are 0 if the slot is free.
        """
    def lock_of(self, slot: int, /) -> int:
        """Returns the byte of the arena that every descriptor sent for a slot has locked; 0: not all of them have."""
    def forget_lock(self, slot: int, /) -> None:
        """Notes that a descriptor without the lock will be sent for a slot."""
    def frames_writing(self, slot: int, /) -> int:
        """Returns the frames of open reservations in which a slot's process has a part, done or not.

        Walks the open list.
        """
    def set_pin_quota(self, frames: int, /) -> None:
        """Limits the frames that one attachment may have pinned; its matches end there. 0: no limit."""
    def set_fleet_breaker(self, state: int, /) -> None:
        """Says whether engines may ask the fleet: they may while it is 0."""
    def matches_at_quota(self) -> int:
        """Returns how many matches of the present attachments ended at that limit."""
    def attachments_with_pins(self) -> list[AttachmentRecord]:
        """Returns attachments() with the pages and bytes that each has pinned. Walks the lock words."""
    def settle(self, most: int = 0, /) -> int:
        """Settles reservations whose writers finished, gave up, died or exceeded their time. Returns how many are open.

        Args:
            most: Checks only so many, and the others in the next calls; 0: checks all.
        """
    def evict(self, frames: int, limit: int, /) -> int:
        """Evicts the coldest pages until `frames` frames are free, at most `limit` pages.

        Returns how many it evicted.
        """
    def flush(self, space: int, tiers: TierFlag, /) -> FlushedPages:
        """Removes a namespace's pages (-1: all pages) from tiers."""
    def forget(self, keys: Array, /) -> FlushedPages:
        """Removes pages from all tiers and overwrites their bytes in memory. Keys that are in no tier are ignored."""
    def disk_open(self, slots: int, rule: WriteRule, device: int = 0, slot_bytes: int = 0, /) -> None:
        """Opens a device, empty until it reports.

        Args:
            slots: The slots for which it has room.
            rule: Which pages are written to all devices.
            device: The number of the device.
            slot_bytes: The bytes of a slot, of which a page may need fewer than its bytes would fill; 0: of a frame.
        """
    def disk_shrink(self, slots: int, device: int = 0, /) -> None:
        """Reduces the capacity of a device, which has less room than it reported, and evicts what no longer fits."""
    def disk_rule(self, rule: WriteRule, /) -> None:
        """Changes the write rule. Pages that were excluded from writing before are considered again."""
    def unwritten(self) -> UnwrittenPages:
        """Counts the pages that are not on disk. It walks the index, which takes some milliseconds."""
    def disk_close(self, device: int = 0, /) -> None:
        """Closes a device with everything that it contained."""
    def disk_complete(self, device: int = 0, /) -> None:
        """Records that all pages on a device were reported."""
    def disk_device(self, device: int = 0, /) -> DeviceUsage:
        """Returns what a device has."""
    def disk_report(
        self, keys: Array, sizes: Array, spaces: Array, ticks: Array, device: int = 0, slots: Array = ..., /
    ) -> None:
        """Adds pages that a device contains (sizes u64, spaces u32, ticks u64).

        `slots` (u32) says how many each takes; 0, and if they are left out: as many as its bytes fill. Pages that the
        index cannot have, or that are on another device, become drops.
        """
    def disk_histories(self, keys: Array, histories: Array, ages: Array, /) -> None:
        """Adds what the tier knows of the uses of reported pages (HISTORY_BYTES each; ages u64, ns since the last use).

        Pages that come before others in their prompt should come first.
        """
    def disk_drops(self, device: int = 0, /) -> bytes:
        """Returns the keys that must leave the device before any write that is commanded before or after this call."""
    def disk_drop(self, keys: Array, device: int = 0, /) -> None:
        """Drops pages from a device. Keys that are not on it are ignored."""
    def disk_damaged(self, keys: Array, device: int = 0, /) -> None:
        """Drops pages that a device could not read back."""
    def frames_before_unwritten(self, enough: int, tenant: int = 0, /) -> int:
        """Returns how many frames a tenant can get before an unwritten page has to be evicted, up to about `enough`."""
    def start_writes(self, frames: int, limit: int, device: int = 0, offset: int = 0, /) -> bytes:
        """Makes room on a device for the coldest unwritten pages, about `frames` frames and at most `limit` pages.

        The pages stay in memory until end_writes().

        Args:
            frames: The frames to write.
            limit: The limit of pages.
            device: The number of the device.
            offset: The stamp of a page on disk minus its tick in memory.

        Returns:
            Rows of PAGE_TO_WRITE_LAYOUT.
        """
    def end_writes(self, pages: Array, results: Array, slots: Array = ..., /) -> None:
        """Ends writes that were commanded.

        Args:
            pages: Rows of start_writes().
            results: A WriteResult (u8) each.
            slots: The slots (u32) that each takes; 0, and if they are left out: as many as its bytes fill.
        """
    def fetch(self, slots: Array, ttl_ns: int, keys: Array, most_frames: Array, /) -> bytes:
        """Grants frames for pages on disk to the worker of their device.

        Args:
            slots: The slot of each device's worker (u32).
            ttl_ns: The grants expire after this time.
            keys: KEY_BYTES each.
            most_frames: For each device (u64): pages that would exceed this number of frames are rejected.

        Returns:
            Rows of PAGE_TO_READ_LAYOUT.
        """
    def fetch_located(
        self,
        slots: Array,
        ttl_ns: int,
        pages: Array,
        most_frames: Array,
        fleet_slot: int,
        fleet_frames: int,
        spaces: Array,
        /,
    ) -> bytes:
        """Grants frames as fetch() does, and for pages in the fleet to the fleet's worker.

        Args:
            slots: As for fetch().
            ttl_ns: As for fetch().
            pages: Rows of LOCATED_PAGE_LAYOUT. Those with a size, that no tier of this host has, are granted to the
                fleet's worker as by a store.
            most_frames: As for fetch().
            fleet_slot: The slot of the fleet's worker.
            fleet_frames: Pages of the fleet that would exceed this number of frames are rejected.
            spaces: The number (u32), as space() returns it, of each namespace of the rows. A page of another one
                counts as not located.

        Returns:
            Rows of PAGE_TO_READ_LAYOUT.
        """
    def reservations(self, entries: Array, /) -> bytes:
        """Returns the number (u32) of the reservation that granted each page; 0 if unknown."""
    def tiers(self, entries: Array, /) -> bytes:
        """Returns the tiers (u8, flags of TierFlag) that have each page; 0 for an entry that does not exist."""
    def count_fetched(self, pages: int, bytes: int, missed: int, /) -> None:
        """Counts the results of requests for pages on disk, for the statistics."""
    def publish_status(self, text: bytes, /) -> None:
        """Publishes the status of the daemon for Observer.status(); at most STATUS_BYTES."""
    def check_integrity(self) -> list[str]:
        """Returns descriptions of what is wrong, one sentence each; empty if nothing is."""
    def close(self) -> None:
        """Marks the segments as closed by a daemon that stops for good."""
