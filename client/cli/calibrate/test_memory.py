"""What is copied while it is measured: a cache whose blocks are anywhere, and pages whose frames are anywhere."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from pagetier.kernels.device import Copy, Direction
from pagetier.kernels.layout.engine_layouts import latents
from pagetier.kernels.layout.frames import Arena, frames_of
from pagetier.kernels.layout.page_layout import PageOrder
from pagetier.kernels.layout.slot_map import slot_map
from pagetier.kernels.layout.transfer import PagedCache

MIB: Final = 1 << 20
FRAME_BYTES: Final = 2 * MIB  # a run does not leave its frame
PAGE_BYTES: Final = 8 * MIB
BLOCK_TOKENS: Final = 16
MOST_LAYERS: Final = 32


class Scene:
    """Memory on a device and pinned memory of the same size on the host, and copies between them.

    cache, arena: tensors of bytes; arena is pinned unless the device is the host.
    """

    def __init__(self, device: str, nbytes: int) -> None:
        """nbytes: of each, whole pages. Raises RuntimeError where there is not as much memory."""
        if nbytes < PAGE_BYTES or nbytes % PAGE_BYTES:
            raise ValueError(f"{nbytes} bytes are no pages of {PAGE_BYTES}")
        on_host = torch.device(device).type == "cpu"
        self.cache: Any = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device=device)
        self.arena: Any = torch.empty(nbytes, dtype=torch.uint8, pin_memory=not on_host)
        self.arena.zero_()
        self.nbytes = nbytes
        self.settle()

    def settle(self) -> None:
        """Waits for all that was given to the device: no stream of ours waits for what torch does."""
        if self.cache.is_cuda:
            torch.cuda.synchronize(self.cache.device)

    def copies(self, direction: Direction, run_bytes: int, chunk_bytes: int) -> list[Copy]:
        """All of the memory once, in copies of so many bytes; what lies side by side on both sides is a run.

        run_bytes: a power of two from 32 to FRAME_BYTES. chunk_bytes: whole pages. The copies of both directions are
        the same ones, so that a load of what was stored changes nothing.
        """
        layers = min(MOST_LAYERS, PAGE_BYTES // run_bytes)
        blocks = PAGE_BYTES // layers // run_bytes
        tensors = self.cache.view(layers, -1, BLOCK_TOKENS, run_bytes // BLOCK_TOKENS)
        layout = latents(list(tensors))
        paged = PagedCache(layout, PageOrder.of(layout, blocks * BLOCK_TOKENS))
        rng = np.random.default_rng(11)
        ids = rng.permutation(tensors.shape[1]).reshape(-1, blocks)
        table = rng.permutation(self.nbytes // FRAME_BYTES).reshape(len(ids), -1)
        pages = chunk_bytes // PAGE_BYTES
        return [
            self._copy(paged, direction, ids[first : first + pages], table[first : first + pages])
            for first in range(0, len(ids), pages)
        ]

    def _copy(self, paged: PagedCache, direction: Direction, ids: Any, table: Any) -> Copy:
        slots = slot_map(ids.reshape(-1), len(ids), paged.page.tokens, BLOCK_TOKENS)
        transfer = paged.loading(slots) if direction is Direction.LOAD else paged.storing(slots)[0]
        arena = Arena(self.arena.data_ptr(), self.nbytes, FRAME_BYTES, self.arena)
        return Copy(direction, transfer, frames_of(arena, table), range(len(transfer.planes)))
