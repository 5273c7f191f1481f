"""The C core as Python sees it. An Array is any contiguous buffer of little-endian elements, named as u8, u32, u64."""

from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar, final

import numpy.typing as npt
from typing_extensions import Buffer

Array: TypeAlias = Buffer | npt.NDArray[Any]
_P = TypeVar("_P", bound=Pins)

FORMAT: int
PARTS: int
SLOTS: int
IDLE_NOTHING: int
IDLE_MORE: int
IDLE_DROPPED: int

class ShmError(Exception):
    """The segments can not be used; the message says why."""

def plan(frame_bytes: int, frames: int, entries: int, spaces: int, /) -> tuple[int, int, int]:
    """Bytes of index, lock words and arena."""

def keys_of_hashes(hashes: list[bytes] | tuple[bytes, ...], digest: bytes, /) -> bytes:
    """Each hash XOR the digest, end to end; all of them have 32 bytes. Raises TypeError and ValueError."""

def miss(kind: type[_P], context: object, asked: int, /) -> _P:
    """A match of nothing, for whoever has no session."""

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
    """Copies tokens of pages out of a strided cache into frames (u32, as many for each page) of an arena in memory.

    planes, pages: i64, rows of pt_plane and pt_tokens (copy_tables.h); blocks: i32; skip: u8, a flag for each page,
    1: leave it alone, or none. What can be seen to be wrong is a ValueError before any byte moves; what is named
    must be memory.
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
    """The way back, by the same tables: frames of an arena into a strided cache."""

class Pins:
    """The pages of one match, pinned until release(), which may be called again; also as a context manager.

    entries (u32) and serials (u64) name the pages exactly, for ever; they are for another process's repin().
    """

    @property
    def asked(self) -> int: ...
    @property
    def available_pages(self) -> int:
        """Pages of the prefix that are in memory or on disk; those behind the first len() are not pinned."""
    @property
    def from_disk(self) -> int:
        """Pages that were on disk when the match looked for them, and are counted as loaded since."""
    @property
    def held(self) -> bool: ...
    @property
    def entries(self) -> bytes: ...
    @property
    def serials(self) -> bytes: ...
    @property
    def sizes(self) -> bytes:
        """Bytes of each page (u64); empty once the pins are let go."""
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
        """Unpins the pages. Pages behind the pinned ones that were not counted by now are counted as missed."""
    def count_loaded(self, pages: int, /) -> None:
        """Counts the tokens behind the pinned pages once the first `pages` pages of the match were loaded.

        Each page is counted once, in the tier where the match found it; those of a rematch in its first match.
        """

@final
class Session:
    """An attached process: the index read-only, lock words and arena to read and write. From any thread.

    The descriptors may be closed afterwards. In a forked child, and after retire(), every call is a miss.
    Raises ShmError if the segments are of another format, OSError if they can not be mapped.
    """

    def __init__(self, index_fd: int, locks_fd: int, arena_fd: int, slot: int) -> None: ...
    @property
    def usable(self) -> bool: ...
    @property
    def closed(self) -> bool:
        """The daemon stopped on purpose, or the handle is not usable: let go of the memory."""
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
        """Where the arena is mapped in this process; 0 where the handle is not usable."""
    @property
    def slot(self) -> int: ...
    def match(self, kind: type[_P], context: object, keys: Array, page_tokens: int = 0, /) -> _P:
        """Pins the longest readable prefix of keys (32 bytes each), and looks how far it goes on on disk.

        Counts a lookup. Tokens from the first page on disk on are counted later: by count_loaded(), or as missed by
        release().

        page_tokens: what a page stands for in the statistics.
        """
    def rematch(self, kind: type[_P], context: object, keys: Array, first: Pins, /) -> _P:
        """Matches again for the request that `first` was matched for, and counts nothing."""
    def match_groups(
        self, kind: type[_P], groups: tuple[tuple[Any, Array, int, int], ...], limit: int, /
    ) -> tuple[int, int, int, tuple[_P, ...]]:
        """Pins what the longest hit needs on which all groups agree, at most `limit` tokens; see match_groups.h.

        Counts nothing: see count_lookup().

        groups: (context, keys, page_tokens, needs) of each, 1 to 64. The answer: tokens of the hit; the same with the
        help of the disk; tokens of the longest hit that there are keys for; and of each group the pins of the pages it
        needs, whose context is context[first:end].
        """
    def repin(self, kind: type[_P], context: object, entries: Array, serials: Array, /) -> _P:
        """Pins what another process matched, as far as it is still there."""
    def copy_out(self, pins: Pins, first: int, addresses: Array, sizes: Array, threads: int, /) -> int:
        """Copies whole pinned pages from `first` on to memory at addresses (u64), sizes (u64) bytes each.

        Returns how many were copied; it stops at a page of another size. The memory must stay valid.
        """
    def copy_in(self, entries: Array, addresses: Array, sizes: Array, offset: int, threads: int, /) -> int:
        """Copies memory into pages that were granted to this process, from byte `offset` of each page on."""
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
        """Copies a strided cache into pages of page_bytes that were granted to this process; the module's tables.

        Returns how many pages from the first on were done, skipped ones too; it stops at a page of another size.
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
        """Copies pinned pages from `first` on into a strided cache; otherwise like the other way."""
    def publish(self, entries: Array, serials: Array, part: int, /) -> bytes:
        """Finishes a part of granted pages and lets go of them; a u8 each: 1 stored, 0 doomed meanwhile."""
    def abandon(self, entries: Array, serials: Array, part: int, /) -> None:
        """Lets go of a part of granted pages without finishing it: they will never be readable."""
    def chain(self, entry: int, /) -> bytes:
        """Frames (u32) of a page that the caller has pinned or was granted; b"" if they make no sense."""
    def populate(self, offset: int, length: int, /) -> None:
        """Maps a piece of the arena ahead of its use."""
    def populate_index(self) -> None:
        """Maps index and lock words ahead of the first match."""
    def count_time(self, load_ns: int, store_ns: int, /) -> None:
        """How long copies took that somebody else made, for the statistics."""
    def count_lookup(
        self, hit_pages: int, miss_pages: int, memory_tokens: int, disk_tokens: int, missed_tokens: int, /
    ) -> None:
        """Counts one request's lookup over several groups."""
    def count_loaded(self, pages: int, bytes: int, /) -> None:
        """What somebody else, a GPU, copied out of pages that this process had pinned, for the statistics."""
    def hold(self) -> None:
        """Somebody whom this process can not wait for, a GPU, uses the arena: until unhold() it stays mapped."""
    def unhold(self) -> None:
        """Ends one hold(). Raises RuntimeError if there is none."""
    def retire(self) -> bool:
        """Ends the handle and all its pins; False, and nothing done, while another thread copies or it is held."""

@final
class Observer:
    """Looks at index and lock words through read-only mappings; while the daemon works, numbers may be apart."""

    def __init__(self, index_fd: int, locks_fd: int) -> None: ...
    def header(self) -> dict[str, int]: ...
    def counts(self) -> dict[str, int]: ...
    def slots(self) -> list[dict[str, Any]]: ...
    def spaces(self) -> list[dict[str, Any]]: ...
    def disk_text(self) -> bytes | None:
        """What the disk tier says of itself; None while that changes: look again."""

@final
class Owner:
    """The daemon's hold on the segments. All calls from one thread, but populate(); none waits for anybody."""

    def __init__(self, index_fd: int, locks_fd: int, arena_fd: int) -> None: ...
    def format(self, frame_bytes: int, frames: int, entries: int, spaces: int, segments_id: int, build: str, /) -> None:
        """Makes fresh segments of memory that is all zero."""
    def why_not(self) -> str | None:
        """Why this build can not adopt the segments; None if it can."""
    def takers(self) -> list[dict[str, Any]]:
        """The attachments that have a slot. Before adoption: whose process lives is for the caller to say."""
    def adopt(self, alive: int, /) -> None:
        """Derives everything from the entries; alive: bits of the slots whose process lives.

        First of all calls but format, why_not, takers, header and the populating ones.
        """
    def populate(self, offset: int, length: int, /) -> None:
        """Allocates a piece of the arena; OSError where memory is short. From any thread."""
    def populate_index(self) -> None: ...
    def take_lazily(self, arena_fd: int, /) -> None:
        """No frame is granted from now on before its memory is there; where there is none, pages leave for others.

        For an arena that is not populated. The descriptor may be closed afterwards.
        """
    def arena_address(self) -> int: ...
    def header(self) -> dict[str, int]: ...
    def spaces(self) -> list[dict[str, Any]]: ...
    @property
    def free_frames(self) -> int: ...
    @property
    def lacks_memory(self) -> bool:
        """Whether there was no memory for a frame, when some was to be taken last; see take_lazily()."""
    @property
    def open_entries(self) -> int: ...
    def attach(self, pid: int, uid: int, started: int, token: int, name: str, /) -> int:
        """The slot of an attachment, its old one if it has one; -1 if all are taken."""
    def keep_only(self, slot: int, serials: Array, /) -> None:
        """Lets go of all that was granted to a slot but the serials (u64) that its process knows of."""
    def reap(self, slot: int, /) -> None:
        """Takes back all that a dead process held, and dooms pages of which only the dead were granted parts."""
    def detach(self, slot: int, /) -> None:
        """Takes back all that a living process held; the parts that it finished wait for those of others."""
    def space(self, digest: bytes, name: str, page_tokens: int, window: int, group: int, /) -> int:
        """The number of a namespace, made on first use; -1 if the table is full of namespaces with pages.

        It means this namespace only until the loop's next turn, unless the namespace has pages.
        """

    def spare_spaces(self) -> int:
        """How many more namespaces the table has room for."""

    def drop_idle(self, idle_ns: int, budget: int, /) -> tuple[int, int, dict[str, Any] | None]:
        """Looks at about `budget` pages of namespaces that were not used for idle_ns, the oldest first, and drops them.

        Returns (found, pages, space). found: IDLE_NOTHING, IDLE_MORE (call again) or IDLE_DROPPED. pages: how many
        of the namespace at hand were dropped so far. space: the record of the one that has none left.
        """
    def reserve(
        self,
        slot: int,
        space: int,
        part: int,
        parts: int,
        ttl_ns: int,
        keys: Array,
        sizes: Array,
        division: int = 0,
        /,
    ) -> tuple[bytes, bytes, bytes]:
        """Answers a chain of keys, head first, as (outcomes u8, entries u32, serials u64); see core/daemon/reserve.h.

        division: how a page is cut into its parts; writers of one page have to agree in it.
        """
    def process_of(self, slot: int, /) -> tuple[int, int]:
        """The process that has a slot, as pid and start time; pid 0: nobody has it."""
    def frames_writing(self, slot: int, /) -> int:
        """Frames of open reservations in which a slot's process has a part, written or not. Walks what is open."""
    def bound_pins(self, frames: int, /) -> None:
        """What one attachment may have pinned from now on: its matches end there. 0: any number."""
    def bounded(self) -> int:
        """Matches, of the attachments that there are, that ended at that bound."""
    def holders(self) -> list[dict[str, Any]]:
        """takers() with the pages and bytes that each has pinned. Walks the lock words."""
    def settle(self, most: int = 0, /) -> int:
        """Moves reservations on whose writers finished, gave up, died or overstayed; returns how many are open.

        most: so many of them alone, the others in the next calls; 0: all.
        """
    def evict(self, frames: int, limit: int, /) -> int:
        """Evicts coldest pages until so many frames are free, at most `limit` pages; returns how many."""
    def flush(self, space: int, tiers: int, /) -> tuple[int, int]:
        """Drops a namespace's pages, all pages for -1, out of tiers (1 memory, 2 disk): (dropped, kept as in use)."""
    def disk_open(self, frames: int, rule: int, /) -> None:
        """A disk tier with so much room is there, empty until it reports. rule: enum pt_write_rule (owner.h)."""
    def disk_shrink(self, frames: int, /) -> None:
        """The tier has so much less room than it said: what is too much leaves it."""
    def disk_rule(self, rule: int, /) -> None:
        """Another rule for what is written from now on; pages that were spared are considered again."""
    def unwritten(self) -> tuple[int, int, int]:
        """Pages and bytes that are still to be written by the rule in force; pages in memory alone that will not be.

        Walks the index: some milliseconds.
        """
    def disk_close(self) -> None:
        """The disk tier is gone with all that it held."""
    def disk_report(self, keys: Array, sizes: Array, spaces: Array, ticks: Array, /) -> None:
        """What the tier holds (u64, u32, u64). What the index can not have, or has no room for, goes to the drops."""
    def disk_drops(self) -> bytes:
        """Keys that are to leave the disk before anything is written that was ordered before this call or after it."""
    def disk_drop(self, keys: Array, /) -> None:
        """Pages that shall not be on disk any more; keys that are not there are fine."""
    def disk_damaged(self, keys: Array, /) -> None:
        """Pages that the tier could not read back: they are told to leave it."""
    def frames_ahead(self, enough: int, /) -> int:
        """Frames that come free before the first unwritten page has to leave, counted up to about `enough`."""
    def order_writes(self, frames: int, limit: int, /) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes]:
        """The coldest unwritten pages, about so many frames and at most `limit` pages; room on disk is made for them.

        (entries u32, serials u64, keys, sizes u64, spaces u32, ticks u64, chains u32). They stay in memory until
        end_orders().
        """
    def end_orders(self, entries: Array, results: Array, /) -> None:
        """What became of pages that were ordered; results: an enum pt_write_result (write_behind.h) a byte."""
    def fetch(self, slot: int, ttl_ns: int, keys: Array, most_frames: int = 0, /) -> tuple[bytes, bytes, bytes]:
        """Frames for pages that are on disk, granted to the worker's slot; answers like reserve(), 5: not there.

        most_frames: what would need more of them is refused; 0: nothing is.
        """
    def sizes(self, entries: Array, /) -> bytes:
        """Bytes of each page (u64)."""
    def chains(self, entries: Array, /) -> bytes:
        """Of each page the run (u32) that it was granted with; 0 where that is not known."""
    def count_fetched(self, pages: int, bytes: int, missed: int, /) -> None:
        """What came of requests for pages on disk, for the statistics."""
    def tell_disk(self, text: bytes, /) -> None:
        """What the disk tier says of itself, for Observer.disk_text(); at most 2048 bytes."""
    def check_integrity(self) -> list[str]:
        """What is wrong, a sentence each; empty if all is well."""
    def close(self) -> None:
        """Says in the header that the daemon stops on purpose."""
