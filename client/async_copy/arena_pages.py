"""Where pages that are pinned, or were granted, lie in the arena; and some pages of a transfer."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.kernels.layout.frames import Arena, Frames, frames_of
from pagetier.kernels.layout.transfer import Transfer
from pagetier.shm._core import Session

Indices = npt.NDArray[np.intp]


def located(session: Session, entries: Iterable[int | None], page_bytes: int) -> Frames:
    """The frames of pages up to the first one that is not of this size, or whose chain makes no sense.

    The session is held, and the pages are the caller's; None stands for a page that nobody will look at.
    """
    arena = Arena(session.arena_address, session.arena_bytes, session.frame_bytes, session)
    count = -(-page_bytes // arena.frame_bytes)
    nothing, chain = bytes(4 * count), session.chain
    rows = [nothing if entry is None else chain(entry) for entry in entries]
    sound = next((at for at, row in enumerate(rows) if len(row) != len(nothing)), len(rows))
    return frames_of(arena, np.frombuffer(b"".join(rows[:sound]), np.int32).reshape(-1, count))


def picked(transfer: Transfer, pages: Indices) -> Transfer:
    """Some pages of a transfer."""
    slots = transfer.slots
    skip = slots.skip[pages] if len(slots.skip) else slots.skip
    return msgspec.structs.replace(transfer, slots=msgspec.structs.replace(slots, pages=slots.pages[pages], skip=skip))


def bytes_of_pages(transfers: Iterable[Transfer], count: int) -> npt.NDArray[np.int64]:
    """How many bytes the transfers move for each page."""
    sizes = np.zeros(count, np.int64)
    for transfer in transfers:
        tokens = transfer.slots.pages[:, 2] - transfer.slots.pages[:, 1]
        sizes += tokens * int((transfer.planes[:, 6] * transfer.planes[:, 7]).sum())
    return sizes


def chunks_of(pages: Indices, sizes: npt.NDArray[np.int64], most: int) -> list[Indices]:
    """Pages in order, in chunks of at most so many bytes, or one page."""
    chunks: list[list[int]] = []
    room = 0
    for page, size in zip(pages.tolist(), sizes[pages].tolist(), strict=True):
        if not chunks or size > room:
            chunks.append([])
            room = most
        chunks[-1].append(page)
        room -= size
    return [np.array(chunk, np.intp) for chunk in chunks]
