"""From pinned pages to host memory, and which of the pages behind them are worth asking the disk for."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from ..kernels.host import Access, HostBuffers, HostPages, page_count, pages_of
from .keys import Keys
from .match import Match


def copy_out(match: Match, into: HostBuffers, first: int, done: int, threads: int) -> int:
    """Copies pages of a match, from page `first + done` on, to memory that begins with page `first`; returns how many.

    Raises TypeError or ValueError for buffers that can not be written to.
    """
    session = match.session
    sizes = match.page_sizes[first:]
    count = _room(into, int(sizes[0])) if len(sizes) else 0
    if session is None or not count:
        return 0
    memory = _as_far_as(pages_of(into, count, Access.WRITE), sizes)
    if len(memory) <= done:
        return 0
    return session.copy_out(match, first + done, memory.addresses[done:], memory.sizes[done:], threads)


class Behind(msgspec.Struct, frozen=True):
    """A prefix that is partly on disk. rest: the keys behind the pinned pages; all: those, and the pinned ones'."""

    rest: Keys
    all: Keys


def pages_behind(match: Match, into: HostBuffers, first: int) -> Behind | None:
    """The pages on disk behind the pinned ones, as far as there is room for them; None if there are none.

    Where no page is pinned whose size would tell how many pages one buffer holds, that is as many as there are.
    """
    keys, session = match.keys, match.session
    if keys is None or match.reach <= len(match) or not match.held or session is None or not session.usable:
        return None
    sizes = match.page_sizes
    page_bytes = int(sizes[min(first, len(sizes) - 1)]) if len(sizes) else 1
    ends = min(match.reach, first + _room(into, page_bytes))
    return Behind(keys[len(match) : ends], keys[:ends]) if ends > max(first, len(match)) else None


def _room(into: HostBuffers, page_bytes: int) -> int:
    """How many pages the buffers hold; none where one buffer is meant for pages of another size."""
    try:
        return page_count(into, page_bytes)
    except ValueError:
        pages_of(into, 1, Access.WRITE)  # raises if it is the buffer itself that is wrong
        return 0


def _as_far_as(memory: HostPages, sizes: npt.NDArray[np.uint64]) -> HostPages:
    """The pages from the first on for which there is a buffer of just their size."""
    count = min(len(memory), len(sizes))
    other = np.flatnonzero(memory.sizes[:count] != sizes[:count])
    count = int(other[0]) if len(other) else count
    return HostPages(memory.addresses[:count], memory.sizes[:count], memory.owners)
