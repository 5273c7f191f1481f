"""Says which pages of a prompt or a namespace are in memory or on disk. Reads shared memory, sends no message.

Nothing is pinned, counted or marked as used, so a lookup never changes which page is evicted next. The HTTP process,
which has no memory for numpy, looks pages up too.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from hashlib import sha256
from heapq import merge
from itertools import compress, count, islice, takewhile
from typing import Final

import msgspec

from pagetier.daemon.common import loop_clock
from pagetier.daemon.common.namespaces import means, with_pages
from pagetier.daemon.status.daemon_status import DaemonStatus
from pagetier.shm._core import KEY_BYTES, LISTED_LAYOUT, NamespaceRecord, Observer, TierFlag
from pagetier.shm.page_rows import PAGE_KEYS

AT_ONCE: Final = 1024
"""Pages of one slice, without other work of the event loop: some milliseconds on a slow machine."""
ENTRIES_AT_ONCE: Final = 8192
"""Entries of the index that are walked without other work of the event loop: at most about 2 ms."""
_MEMORY: Final = int(TierFlag.MEMORY)
_TOKEN_BYTES: Final = 4
_OFFSETS: Final = {name: offset for name, offset, _ in LISTED_LAYOUT.fields}
_WORD: Final = 8
_IS_ON_DISK_ONLY: Final = bytes(tiers == TierFlag.DISK for tiers in range(256))
_IS_IN_MEMORY: Final = bytes(bool(tiers & TierFlag.MEMORY) for tiers in range(256))
# The largest part of the arena that a namespace's pages may take by a prefetch, as that which may be read at once.
_MOST_OF_ARENA: Final = 0.9
WHOLE_KEYS: Final = "`pagetier pages ls NAMESPACE --json` prints whole keys of first pages"
LEFT_OUT: Final = "a namespace gets at most nine tenths of the arena, less what is in use or pinned, or its quota"


class UnknownNamespaceError(Exception):
    """A text names no namespace, or several; the message says which there are."""


class FoundPages(msgspec.Struct, frozen=True, kw_only=True):
    """Where the pages of a prompt are now.

    Attributes:
        pages: Pages that were asked for.
        prefix: Pages from the first one up to the first that is in no tier.
        prefix_tokens: Tokens of these pages.
        prefix_memory: Pages from the first one up to the first that is not in memory.
        memory: Pages in memory.
        disk: Pages on disk, including those that are in memory too.
        disk_only: Pages on disk that are not in memory.
        note: Why no page is found, or of which other namespace they are; "" if there is nothing to say.
    """

    pages: int
    prefix: int
    prefix_tokens: int
    prefix_memory: int
    memory: int
    disk: int
    disk_only: int
    note: str = ""


def found_pages(tiers: bytes, page_tokens: int, note: str = "") -> FoundPages:
    """Returns where pages are whose tiers (TierFlag) an observer has located, head first."""
    prefix = tiers.find(0) if 0 in tiers else len(tiers)
    memory = sum(bool(each & _MEMORY) for each in tiers)
    return FoundPages(
        pages=len(tiers),
        prefix=prefix,
        prefix_tokens=prefix * page_tokens,
        prefix_memory=sum(1 for _ in takewhile(lambda each: each & _MEMORY, tiers)),
        memory=memory,
        disk=sum(bool(each & TierFlag.DISK) for each in tiers),
        disk_only=len(tiers) - tiers.count(0) - memory,
        note=note,
    )


def lookup_note(observer: Observer, space: NamespaceRecord, keys: bytes) -> str:
    """Returns why no page was found, or found in another namespace; "" if there is nothing to say.

    A page that is found is looked for among those of each namespace, which walks the index.
    """
    if not keys:
        return f"no page is named: a page of {space.name} has {space.page_tokens} tokens"
    at = next((at for at, tier in enumerate(observer.locate(keys)) if tier), None)
    if at is None:
        return f"no page has these keys: are they of another namespace than {space.name}, or of an engine such as vLLM?"
    key = PAGE_KEYS.part(keys, at, at + 1)
    owner = next((each for each in (space, *observer.spaces()) if key in observer.pages(each.number)), space)
    return "" if owner.number == space.number else f"these pages are of the namespace {owner.name}, not {space.name}"


def no_chain(space: NamespaceRecord) -> str:
    """Returns why token IDs may name no page of a namespace, and what does."""
    return (
        f"no page of {space.name} has these tokens; token IDs name only pages whose keys are pagetier's own chain:"
        " pages of vLLM and SGLang are found by their block hashes (hashes of POST /v1/lookup), or by keys"
        f' (--keys-file); `pagetier pages ls "{space.name}"` shows what is stored'
    )


def namespace_named(spaces: Sequence[NamespaceRecord], wanted: str) -> NamespaceRecord:
    """Returns the namespace with this label, model, or digest (at least 8 digits).

    Raises:
        UnknownNamespaceError: There is none, or more than one.
    """
    found = [space for space in spaces if means(wanted, space.name, space.digest)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f"{space.name} ({space.digest.hex()[:16]})" for space in found)
        raise UnknownNamespaceError(f'"{wanted}" means {len(found)} namespaces, name one by its digest: {names}')
    names = ", ".join(space.name for space in with_pages(spaces))
    raise UnknownNamespaceError(
        f'no namespace is "{wanted}"; {f"there are: {names}" if names else "there are none yet"}'
    )


def keys_of_tokens(space: NamespaceRecord, tokens: Sequence[int]) -> bytes:
    """Returns the keys that pagetier's own chain gives to all full pages of these tokens, each below 2**32.

    Engines that hash their blocks themselves, such as vLLM, use other keys.
    """
    return b"".join(_chain(space.digest, array("I", tokens).tobytes(), space.page_tokens * _TOKEN_BYTES))


def _chain(previous: bytes, tokens: bytes, page_bytes: int) -> Iterator[bytes]:
    for start in range(0, len(tokens) - page_bytes + 1, page_bytes):
        previous = sha256(previous + tokens[start : start + page_bytes]).digest()
        yield previous


class PagesOnDisk(msgspec.Struct, frozen=True, kw_only=True):
    """The pages of namespaces, and those of them that a prefetch reads.

    Attributes:
        pages: All pages.
        in_memory: Those in memory.
        keys: The keys of those that are only on disk, the last used first, as many as memory has room for.
        left_out: How many others are only on disk.
        why_left_out: Why, if there are any.
    """

    pages: int
    in_memory: int
    keys: bytes
    left_out: int
    why_left_out: str = LEFT_OUT


def in_memory(tiers: bytes) -> int:
    """Returns how many pages are in memory, of the tiers (TierFlag) that an observer has located."""
    return tiers.translate(_IS_IN_MEMORY).count(1)


def only_on_disk(tiers: bytes) -> int:
    """Returns how many pages are only on disk, of the tiers (TierFlag) that an observer has located."""
    return tiers.count(TierFlag.DISK)


async def count_only_on_disk(observer: Observer, spaces: Sequence[NamespaceRecord]) -> int:
    """Returns how many pages of these namespaces are only on disk. Walks all entries of the index in slices."""
    return sum([only_on_disk(_tiers(rows)) async for rows in _slices(observer, spaces)])


async def _slices(observer: Observer, spaces: Sequence[NamespaceRecord]) -> AsyncIterator[bytes]:
    """Yields the pages of namespaces, rows of LISTED_LAYOUT. The event loop does other work after each slice.

    A page that leaves and comes back between two slices may be listed twice or not at all.
    """
    for space in spaces:
        for start in range(0, observer.header().entries, ENTRIES_AT_ONCE):
            yield observer.pages(space.number, start, ENTRIES_AT_ONCE)
            await loop_clock.give_way()


async def pages_to_read(
    observer: Observer, status: DaemonStatus, spaces: Sequence[NamespaceRecord], most: int | None = None
) -> PagesOnDisk:
    """Returns the pages of these namespaces, of which a prefetch reads `most` at most.

    There is room for them without pages of these namespaces, those that engines have pinned and those that are kept.
    All entries of the index are walked, then all listed pages, each in slices, after which the event loop does other
    work. The list has 64 bytes for each page until the end.
    """
    listed = bytearray()  # grows where it is, as a rule: joined at the end, all pages would be copied in one turn
    async for rows in _slices(observer, spaces):
        listed += rows
    pages = _ListedPages(listed, observer.header().frame_bytes)
    here, room = 0, _room(observer, status, spaces)
    on_disk: list[array[int]] = []
    for begin in range(0, len(pages), AT_ONCE):
        await loop_clock.give_way()
        in_memory = pages.rows(begin, _IS_IN_MEMORY)
        here += len(in_memory)
        room -= sum(map(pages.frames, in_memory))
        on_disk.append(array("I", sorted(pages.rows(begin, _IS_ON_DISK_ONLY), key=pages.used_ns, reverse=True)))
    keys = await _first_that_fit(pages, islice(merge(*on_disk, key=pages.used_ns, reverse=True), most), room)
    left_out = len(pages) - here - PAGE_KEYS.count(keys)
    why = f"a request reads at most {most:,} pages" if PAGE_KEYS.count(keys) == most else LEFT_OUT
    return PagesOnDisk(pages=len(pages), in_memory=here, keys=keys, left_out=left_out, why_left_out=why)


async def _first_that_fit(pages: _ListedPages, rows: Iterator[int], room: int) -> bytes:
    """Returns the keys of the pages in the first of these rows, as many as fit into `room` frames."""
    keys = list[bytes]()
    for row in rows:
        room -= pages.frames(row)
        if room < 0:
            break
        keys.append(pages.key(row))
        if not len(keys) % AT_ONCE:
            await loop_clock.give_way()
    return b"".join(keys)


class _ListedPages:
    """Pages that an observer has listed, by the number of their row."""

    def __init__(self, listed: bytearray, frame_bytes: int) -> None:
        self._listed = memoryview(listed)
        self._sizes = _words(listed, "size")
        self._frame_bytes = frame_bytes
        self.used_ns = _words(listed, "used_ns").__getitem__

    def __len__(self) -> int:
        return len(self._sizes)

    def rows(self, begin: int, tiers: bytes) -> list[int]:
        """Returns those of the slice from row `begin` on whose tiers are marked in a table."""
        part = self._listed[begin * LISTED_LAYOUT.size : (begin + AT_ONCE) * LISTED_LAYOUT.size]
        return list(compress(count(begin), _tiers(bytes(part)).translate(tiers)))

    def frames(self, row: int) -> int:
        """Returns how many frames a page takes."""
        return -(-self._sizes[row] // self._frame_bytes)

    def key(self, row: int) -> bytes:
        """Returns the key of a page."""
        begin = row * LISTED_LAYOUT.size + _OFFSETS["key"]
        return bytes(self._listed[begin : begin + KEY_BYTES])


def _room(observer: Observer, status: DaemonStatus, spaces: Sequence[NamespaceRecord]) -> int:
    """Returns how many frames pages of these namespaces may take, of those that are not pinned."""
    header = observer.header()
    quotas = [use.arena_maximum for space in spaces for use in status.tenants[space.tenant - 1 : space.tenant]]
    pinned = sum(attachment.pinned_bytes for attachment in observer.attachments_with_pins())
    most = int(header.frames * min([_MOST_OF_ARENA, *quotas]))
    return most - (pinned + status.hints.kept_bytes) // header.frame_bytes


def _tiers(rows: bytes) -> bytes:
    return rows[_OFFSETS["tiers"] :: LISTED_LAYOUT.size]


def _words(rows: bytearray, name: str) -> memoryview[int]:
    return memoryview(rows).cast("Q")[_OFFSETS[name] // _WORD :: LISTED_LAYOUT.size // _WORD]
