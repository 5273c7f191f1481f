"""Copies pinned pages to an engine's memory, and selects the pages after them that are worth reading from disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from pagetier.client.arguments import Misuse, integer_of
from pagetier.client.group_match import GroupMatch, group_of
from pagetier.client.match import Match, require_match
from pagetier.client.paged_blocks import Blocks, require_named
from pagetier.kernels.host.buffers import Access, HostBuffers, HostPages, page_count, pages_of
from pagetier.shm._core import Session


class Destination(ABC):
    """The memory to which the pages of a match are copied, from page `start_page` of the match on."""

    def __init__(self, start_page: int) -> None:
        self.start_page = start_page

    @abstractmethod
    def page_count(self, page_bytes: int) -> int:
        """Returns the number of pages of this size that fit.

        Raises TypeError or ValueError for memory that is not writable.
        """

    def copy(self, match: Match, done: int) -> int:
        """Copies the pages of a match except for the first `done`, and returns how many."""
        session = match.session
        sizes = match.page_sizes[self.start_page :]
        count = min(self.page_count(int(sizes[0])), len(sizes)) if len(sizes) else 0
        return self._copy(session, match, done, sizes[:count]) if session is not None and count > done else 0

    @abstractmethod
    def _copy(self, session: Session, match: Match, done: int, sizes: npt.NDArray[np.uint64]) -> int:
        """Copies pages from start_page + done on, and returns how many; 0 if the session has ended.

        `sizes` are those of the pages from `start_page` on.
        """


class BufferDestination(Destination):
    """Host memory in C order."""

    def __init__(self, out: HostBuffers, start_page: int, threads: int) -> None:
        super().__init__(start_page)
        self._out = out
        self._threads = threads

    def page_count(self, page_bytes: int) -> int:
        """Implements Destination.page_count(). Returns 0 if one buffer does not hold whole pages of this size."""
        try:
            return page_count(self._out, page_bytes)
        except ValueError:
            pages_of(self._out, 1, Access.WRITE)  # raises if the buffer itself is invalid
            return 0

    def _copy(self, session: Session, match: Match, done: int, sizes: npt.NDArray[np.uint64]) -> int:
        memory = _fitting(pages_of(self._out, self.page_count(int(sizes[0])), Access.WRITE), sizes)
        addresses = memory.addresses[done:]
        return session.copy_out(match, self.start_page + done, addresses, memory.sizes[done:], self._threads)


class BlockDestination(Destination):
    """Blocks of an engine's cache.

    Raises:
        ValueError: The blocks cannot be loaded; nothing was copied.
    """

    def __init__(self, out: Blocks, start_page: int, threads: int) -> None:
        super().__init__(start_page)
        self._transfer = out.loading
        self._threads = threads

    def page_count(self, page_bytes: int) -> int:
        """Implements Destination.page_count(). The size does not matter: a page of another size is a miss."""
        return len(self._transfer.slots)

    def _copy(self, session: Session, match: Match, done: int, sizes: npt.NDArray[np.uint64]) -> int:
        transfer = self._transfer
        slots = transfer.slots.some(done, len(sizes))
        return session.scatter(
            match,
            self.start_page + done,
            transfer.page_bytes,
            transfer.planes,
            slots.pages,
            slots.blocks,
            slots.block_tokens,
            slots.skip,
            self._threads,
        )


def destination_of(match: Match, out: HostBuffers | Blocks, start_page: int, threads: int) -> Destination:
    """Returns the destination for the `out` of a load().

    Raises ValueError if the blocks cannot be loaded, or have another layout than the pages of the match.
    """
    if isinstance(out, Blocks):
        if match.keys is not None:
            require_named(match.keys.namespace, out.cache.page)
        return BlockDestination(out, start_page, threads)
    return BufferDestination(out, start_page, threads)


def reachable_pages(match: Match) -> int:
    """Returns how many pages a load may bring: those on this host, or all while the fleet can be asked for them."""
    session = match.session
    return match.asked if session is not None and session.asks_fleet else match.available_pages


def unpinned_prefix_of(match: Match, out: Destination) -> GroupMatch | None:
    """Returns what unread_prefix() does, for as many pages as there is room for.

    If no page is pinned, the page size is unknown, and one buffer counts as large enough for all pages.
    """
    if not match.pinned or reachable_pages(match) <= len(match):
        return None
    sizes = match.page_sizes
    page_bytes = int(sizes[min(out.start_page, len(sizes) - 1)]) if len(sizes) else 1
    return unread_prefix(match, out.start_page, out.start_page + out.page_count(page_bytes))


def unread_prefix(match: Match, start_page: int, end_page: int) -> GroupMatch | None:
    """Returns a match up to the last page that a load may bring, or None if no page after the pinned ones is needed.

    Pages that are not on disk are among them while the fleet can be asked for them.

    Args:
        match: A match of a prompt.
        start_page: The first page that is needed.
        end_page: The end of these pages.
    """
    session, ends = match.session, min(reachable_pages(match), end_page)
    if match.keys is None or not match.pinned or session is None or not session.usable:
        return None
    return group_of(match, ends) if ends > max(start_page, len(match)) else None


def first_page(match: object, start_page: object) -> int:
    """Returns the first page of a load.

    Raises:
        TypeError: It is not an integer, or the load is made without a match.
        ValueError: It is negative.
    """
    require_match(match, "load()")
    number = integer_of("start_page", start_page)
    if number < 0:
        raise ValueError(f"start_page must be 0 or more, not {number}")
    return number


def tokens_to_skip(match: Match, skip_tokens: object, page_tokens: int, units: int) -> int:
    """Returns the tokens that a load skips of pages that are copied in this many units.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is negative, or more than a prompt of as many full pages has. A match of another process does not
            know its prompt. Or it ends inside a page whose units are not its tokens.
    """
    number = integer_of("skip_tokens", skip_tokens)
    if number < 0:
        raise ValueError(f"skip_tokens must be 0 or more, not {number}")
    if match.keys is not None and number >= (most := (match.asked + 1) * page_tokens):
        raise ValueError(
            f"skip_tokens is {number}, but the prompt that was matched has {match.asked} full pages of {page_tokens}"
            f" tokens, so fewer than {most} tokens"
        )
    if units != page_tokens and number % page_tokens:
        raise ValueError(f"skip_tokens is {number}, but opaque rows are copied in whole pages of {page_tokens} tokens")
    return number


def table_length(block_table: Any) -> int:
    """Returns the number of blocks in a block table. Raises TypeError if it is no sequence."""
    try:
        return len(block_table)
    except TypeError:
        raise TypeError(f"a block table is a sequence of block IDs, not {type(block_table).__name__}") from None


def why_nothing_loaded(match: Match, out: HostBuffers, start_page: int) -> Misuse | None:
    """Returns the mistake for which buffers cannot take the first page of a match; None if they can."""
    if len(match) and not match.pinned:
        return Misuse.RELEASED
    sizes = match.page_sizes[start_page:]
    return Misuse.OTHER_SIZE if len(sizes) and not _fits(out, int(sizes[0])) else None


def _fits(out: HostBuffers, page_bytes: int) -> bool:
    """Returns whether the first of some buffers, or one buffer for all pages, has room for exactly whole pages."""
    try:
        count = page_count(out, page_bytes)
    except ValueError:
        return False
    return count > 0 and int(pages_of(out, count, Access.WRITE).sizes[0]) == page_bytes


def _fitting(memory: HostPages, sizes: npt.NDArray[np.uint64]) -> HostPages:
    """Returns the pages, from the first on, whose buffer has exactly the size of the page."""
    count = min(len(memory), len(sizes))
    other = (memory.sizes[:count] != sizes[:count]).nonzero()[0]  # np.flatnonzero takes several times as long
    count = int(other[0]) if len(other) else count
    return HostPages(memory.addresses[:count], memory.sizes[:count], memory.owners)
