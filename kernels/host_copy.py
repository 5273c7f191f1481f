"""The host path: the copies of the kernels, in C, between a CPU engine's cache and frames in mapped memory.

Who is attached copies by way of the session, which takes the frames from the pages that it holds; see client.
"""

from __future__ import annotations

from typing import Any

from ..shm import _core
from .frames import Frames
from .transfer import Transfer


def gather(transfer: Transfer, frames: Frames, threads: int = 1) -> None:
    """From the cache into the pages. The GIL is let go; both memories stay as they are for the call.

    Raises ValueError, before anything is copied, if the cache is not in host memory, the table of frames is not one
    row a page or its rows do not hold a page.
    """
    _core.gather(*_arguments(transfer, frames, threads))


def scatter(transfer: Transfer, frames: Frames, threads: int = 1) -> None:
    """From the pages into the cache; otherwise as gather()."""
    _core.scatter(*_arguments(transfer, frames, threads))


def _arguments(transfer: Transfer, frames: Frames, threads: int) -> Any:
    require_host(transfer)
    slots, arena = transfer.slots, frames.arena
    frames.require_room(len(slots), transfer.page_bytes)
    where = (arena.address, arena.nbytes, arena.frame_bytes, frames.table)
    return (*where, transfer.planes, slots.pages, slots.blocks, slots.block_tokens, slots.skip, threads)


def require_host(transfer: Transfer) -> None:
    """Raises ValueError if the cache is not in host memory."""
    if transfer.device != "cpu":
        raise ValueError(f"the cache is on {transfer.device}: the host path copies host memory alone")
