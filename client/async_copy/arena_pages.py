"""Pages in the arena that a device copies: those pinned for a load, and the chunks of a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client.async_copy.job import Piece
from pagetier.client.match import Match, MatchHandle
from pagetier.kernels.device import Copy, Direction
from pagetier.kernels.layout.frames import Arena, Frames, frames_of
from pagetier.kernels.layout.tables import row_bytes
from pagetier.kernels.layout.transfer import Transfer
from pagetier.shm._core import Pins, Session
from pagetier.shm.page_rows import PAGE_ENTRIES, PAGE_SERIALS
from pagetier.shm.retained_arena import RetainedArena
from pagetier.shm.row_arrays import entries_of, sizes_of

Indices = npt.NDArray[np.intp]


class Chunk(msgspec.Struct, frozen=True, eq=False):
    """Pages that are stored together, their location and their size."""

    pages: Indices
    frames: Frames
    nbytes: int

    def piece(self, transfers: Iterable[Transfer]) -> Piece:
        """Returns the copies of the chunk; each of the transfers is of all pages of the store."""
        copies = []
        for transfer in transfers:
            some = picked(transfer, self.pages)
            copies.append(Copy(Direction.STORE, some, self.frames, range(len(transfer.planes))))
        return Piece(tuple(copies), self.nbytes)


class Source(msgspec.Struct, frozen=True, eq=False):
    """Pages that are pinned for one load, and their destination, until release() or until it is dropped."""

    session: Session
    arena: RetainedArena
    pins: Pins
    transfer: Transfer
    frames: Frames

    @property
    def tokens(self) -> int:
        """The number of tokens that are copied."""
        slots = self.transfer.slots
        return int((slots.pages["end"] - slots.pages["first"])[~slots.skips].sum())

    def release(self) -> None:
        """Unpins the pages and releases the arena."""
        self.pins.release()
        self.arena.release()


def pinned_source(session: Session | None, match: Match | MatchHandle, transfer: Transfer, first: int) -> Source | None:
    """Returns pages of a match from `first` on, pinned for a load, or None if there are none.

    The pages end where the transfer does, at the first page of another size, or at the first one that is gone.

    Args:
        session: The session whose memory the pages are in; None for none.
        match: The pages: a match of this process, or a handle of one in another process.
        transfer: The copies of the pages from `first` on.
        first: The first page.
    """
    if session is None:
        return None
    arena = RetainedArena(session)  # before `usable` is read: a session that ends in between stays mapped
    if not session.usable or first < 0:
        return None
    source = _pinned(session, arena, match, transfer, first)
    return source if len(source.frames.table) else None


def _pinned(
    session: Session, arena: RetainedArena, match: Match | MatchHandle, transfer: Transfer, first: int
) -> Source:
    last = first + len(transfer.slots)
    pins = session.repin(
        Pins, None, PAGE_ENTRIES.part(match.entries, first, last), PAGE_SERIALS.part(match.serials, first, last)
    )
    skips = transfer.slots.skips[: len(pins)]
    other = (sizes_of(pins.sizes) != transfer.page_bytes) & ~skips
    count = int(other.argmax()) if other.any() else len(pins)
    entries = entries_of(pins.entries)[:count]
    named = [None if skip else entry for entry, skip in zip(entries.tolist(), skips.tolist(), strict=False)]
    frames = located(session, named, transfer.page_bytes)
    slots = transfer.slots.some(0, len(frames.table))
    return Source(session, arena, pins, msgspec.structs.replace(transfer, slots=slots), frames)


def located(session: Session, entries: Iterable[int | None], page_bytes: int) -> Frames:
    """Returns the frames of pages, up to the first page that has another size or whose list of frames is damaged.

    The caller has retained the arena, and has the pages pinned or granted.

    Args:
        session: The session whose arena the pages are in.
        entries: The entry of each page; None for a page that is not copied, whose frames are 0.
        page_bytes: The size of each page.
    """
    arena = Arena(session.arena_address, session.arena_bytes, session.frame_bytes, session)
    count = -(-page_bytes // arena.frame_bytes)
    empty = bytes(count * np.dtype(np.int32).itemsize)
    rows = [empty if entry is None else session.frames(entry) for entry in entries]
    valid = len(rows)
    if not set(map(len, rows)) <= {len(empty)}:
        valid = next(at for at, row in enumerate(rows) if len(row) != len(empty))
    return frames_of(arena, np.frombuffer(b"".join(rows[:valid]), np.int32).reshape(-1, count))


def picked(transfer: Transfer, pages: Indices) -> Transfer:
    """Returns some pages of a transfer, each once and in their order."""
    slots = transfer.slots
    if len(pages) == len(slots):
        return transfer
    skip = slots.skip[pages] if len(slots.skip) else slots.skip
    return msgspec.structs.replace(
        transfer, slots=msgspec.structs.replace(slots, pages=slots.pages.take(pages), skip=skip)
    )


def bytes_of_pages(transfers: Iterable[Transfer], count: int) -> npt.NDArray[np.int64]:
    """Returns the number of bytes that the transfers copy for each page."""
    sizes = np.zeros(count, np.int64)
    for transfer in transfers:
        pages = transfer.slots.pages
        sizes += (pages["end"] - pages["first"]) * row_bytes(transfer.planes)
    return sizes


def cut(pages: Indices, frames: Frames, sizes: npt.NDArray[np.int64], most: int) -> Iterator[Chunk]:
    """Yields the chunks of the pages, in order; see chunks_of(). `frames` has a row for each of them."""
    at = 0
    for some in chunks_of(pages, sizes, most):
        yield Chunk(some, frames.some(at, at + len(some)), int(sizes[some].sum()))
        at += len(some)


def chunks_of(pages: Indices, sizes: npt.NDArray[np.int64], most: int) -> list[Indices]:
    """Returns the pages, in order, in chunks of at most `most` bytes, or of one page."""
    of_pages = sizes[pages]
    if len(pages) and of_pages.sum() <= most:  # the usual case: pages of a step
        return [pages]
    chunks: list[list[int]] = []
    left = 0
    for page, size in zip(pages.tolist(), of_pages.tolist(), strict=True):
        if not chunks or size > left:
            chunks.append([])
            left = most
        chunks[-1].append(page)
        left -= size
    return [np.array(chunk, np.intp) for chunk in chunks]
