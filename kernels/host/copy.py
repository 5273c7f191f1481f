"""The host path: the kernels' copies, in C, between a CPU engine's cache and frames in mapped memory.

Attached clients copy through their session instead, which takes the frames from the pages that it has pinned.
"""

from __future__ import annotations

from typing import Any

from pagetier.kernels.layout.frames import Frames
from pagetier.kernels.layout.transfer import Transfer
from pagetier.shm import _core


def gather(transfer: Transfer, frames: Frames, threads: int = 1, planes: range | None = None) -> None:
    """Copies from the cache into the pages, without the GIL. Neither memory may be freed during the call.

    Args:
        transfer: The tokens to copy.
        frames: The frames of the pages.
        threads: The number of threads to copy on.
        planes: The rows of the transfer's planes to copy; all of them by default.

    Raises:
        ValueError: The cache is not in host memory, the table of frames does not have one row a page, or a row does not
            hold a page. Nothing was copied then.
    """
    _core.gather(*_arguments(transfer, frames, threads, planes))


def scatter(transfer: Transfer, frames: Frames, threads: int = 1, planes: range | None = None) -> None:
    """Copies from the pages into the cache; otherwise like gather()."""
    _core.scatter(*_arguments(transfer, frames, threads, planes))


def _arguments(transfer: Transfer, frames: Frames, threads: int, planes: range | None) -> Any:
    transfer.require_host()
    slots, arena = transfer.slots, frames.arena
    rows = transfer.planes if planes is None else transfer.planes[planes.start : planes.stop]
    frames.require_room(len(slots), transfer.page_bytes)
    where = (arena.address, arena.nbytes, arena.frame_bytes, frames.table)
    return (*where, rows, slots.pages, slots.blocks, slots.block_tokens, slots.skip, threads)
