"""A slow and simple byte-by-byte model of a copy between a cache and an arena."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pagetier.kernels.layout.frames import Frames
from pagetier.kernels.layout.transfer import Transfer

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[Any]


def gathered(transfer: Transfer, frames: Frames, cache: Bytes, arena: Bytes, planes: range) -> Bytes:
    """Returns the expected arena after a copy from the cache."""
    after = arena.copy()
    for in_cache, in_arena in _rows(transfer, frames, planes):
        after[in_arena] = cache[in_cache]
    return after


def scattered(transfer: Transfer, frames: Frames, cache: Bytes, arena: Bytes, planes: range) -> Bytes:
    """Returns the expected cache after a copy from the arena."""
    after = cache.copy()
    for in_cache, in_arena in _rows(transfer, frames, planes):
        after[in_cache] = arena[in_arena]
    return after


def _rows(transfer: Transfer, frames: Frames, planes: range) -> Iterator[tuple[Places, Places]]:
    """Yields the places of each row's bytes in cache and arena.

    Addresses of the planes count from the begin of the cache.
    """
    slots, frame_bytes = transfer.slots, frames.arena.frame_bytes
    for page, (position, first, end) in enumerate(slots.pages.tolist()):
        if len(slots.skip) and slots.skip[page]:
            continue
        for plane in planes:
            base, block, token, head, at, page_head, heads, width = transfer.planes[plane].tolist()
            for h in range(heads):
                for t in range(first, end):
                    number = int(slots.blocks[(position + t) // slots.block_tokens])
                    slot = (position + t) % slots.block_tokens
                    in_cache = base + number * block + slot * token + h * head + np.arange(width)
                    in_page = at + h * page_head + t * width + np.arange(width)
                    frame = frames.table[page, in_page // frame_bytes]
                    yield in_cache, frame * frame_bytes + in_page % frame_bytes
