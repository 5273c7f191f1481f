"""From pinned pages to where an engine wants them, and which of the pages behind them are worth asking the disk for."""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client.keys import Keys
from pagetier.client.match import Match
from pagetier.client.paged_blocks import Blocks, require_named
from pagetier.kernels.host.buffers import Access, HostBuffers, HostPages, page_count, pages_of
from pagetier.shm._core import Session


class Destination(ABC):
    """Where pages of a match are copied to, from its page `start_page` on."""

    def __init__(self, start_page: int) -> None:
        self.start_page = start_page

    @abstractmethod
    def room(self, page_bytes: int) -> int:
        """How many pages of this size there is room for. Raises TypeError or ValueError for what can not be written."""

    def copy(self, match: Match, done: int) -> int:
        """Copies, but for the first `done` pages; returns how many."""
        session = match.session
        sizes = match.page_sizes[self.start_page :]
        count = min(self.room(int(sizes[0])), len(sizes)) if len(sizes) else 0
        return self._copy(session, match, done, sizes[:count]) if session is not None and count > done else 0

    @abstractmethod
    def _copy(self, session: Session, match: Match, done: int, sizes: npt.NDArray[np.uint64]) -> int:
        """Pages from first + done on, of these that begin at `start_page`. The session may end meanwhile: then none."""


class BufferDestination(Destination):
    """Host memory in C order."""

    def __init__(self, out: HostBuffers, start_page: int, threads: int) -> None:
        super().__init__(start_page)
        self._out = out
        self._threads = threads

    def room(self, page_bytes: int) -> int:
        """None where one buffer is meant for pages of another size."""
        try:
            return page_count(self._out, page_bytes)
        except ValueError:
            pages_of(self._out, 1, Access.WRITE)  # raises if it is the buffer itself that is wrong
            return 0

    def _copy(self, session: Session, match: Match, done: int, sizes: npt.NDArray[np.uint64]) -> int:
        memory = _as_far_as(pages_of(self._out, self.room(int(sizes[0])), Access.WRITE), sizes)
        addresses = memory.addresses[done:]
        return session.copy_out(match, self.start_page + done, addresses, memory.sizes[done:], self._threads)


class BlockDestination(Destination):
    """An engine's cache. Raises ValueError where the blocks can not be loaded to, before anything is copied."""

    def __init__(self, out: Blocks, start_page: int, threads: int) -> None:
        super().__init__(start_page)
        self._transfer = out.loading
        self._threads = threads

    def room(self, page_bytes: int) -> int:
        """Of whatever size: what is no page of this cache is a miss."""
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
    """Of whatever a caller of load() gives. Raises ValueError for blocks that are not for pages of this match."""
    if isinstance(out, Blocks):
        if match.keys is not None:
            require_named(match.keys.namespace, out.cache.page)
        return BlockDestination(out, start_page, threads)
    return BufferDestination(out, start_page, threads)


class DiskPrefix(msgspec.Struct, frozen=True):
    """A prefix that is partly on disk. rest: the keys behind the pinned pages; all: those, and the pinned ones'."""

    session: Session
    rest: Keys
    all: Keys


def pages_behind(match: Match, out: Destination) -> DiskPrefix | None:
    """The pages on disk behind the pinned ones, as far as there is room for them; None if there are none.

    Where no page is pinned whose size would tell how many pages one buffer holds, that is as many as there are.
    """
    keys, session = match.keys, match.session
    if keys is None or match.available_pages <= len(match) or not match.held or session is None or not session.usable:
        return None
    sizes = match.page_sizes
    page_bytes = int(sizes[min(out.start_page, len(sizes) - 1)]) if len(sizes) else 1
    ends = min(match.available_pages, out.start_page + out.room(page_bytes))
    return DiskPrefix(session, keys[len(match) : ends], keys[:ends]) if ends > max(out.start_page, len(match)) else None


def _as_far_as(memory: HostPages, sizes: npt.NDArray[np.uint64]) -> HostPages:
    """The pages from the first on for which there is a buffer of just their size."""
    count = min(len(memory), len(sizes))
    other = np.flatnonzero(memory.sizes[:count] != sizes[:count])
    count = int(other[0]) if len(other) else count
    return HostPages(memory.addresses[:count], memory.sizes[:count], memory.owners)
