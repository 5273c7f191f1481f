"""The location of pinned or granted pages in the arena, and selections of the pages of a transfer."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.kernels.layout.frames import Arena, Frames, frames_of
from pagetier.kernels.layout.struct_dtypes import row_bytes
from pagetier.kernels.layout.transfer import Transfer
from pagetier.shm._core import Session

Indices = npt.NDArray[np.intp]


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
    empty = bytes(4 * count)
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
