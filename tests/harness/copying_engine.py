"""An engine with a copier over the host path, and a cache whose content identifies its prompt."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from eventually import PATIENCE_S
from pagetier.client import Client, Keys, LoadHandle, Namespace
from pagetier.client.adapters import AsyncCopier
from pagetier.kernels.config.copy_settings import CopySettings
from pagetier.kernels.host.host_device import HostDevice
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.page_layout import PageLayout
from pagetier.kernels.layout.slot_map import SlotMap, slot_map
from pagetier.kernels.layout.transfer import PagedCache

TOKENS, BLOCK, LAYERS, BLOCKS = 16, 8, 4, 64
COPYING = CopySettings(chunk=1 << 20, reserve_timeout=PATIENCE_S)


class PagedEngine:
    """An engine with a cache of four layers, K and V first, whose content depends on the seed."""

    def __init__(self, seed: int, page_tokens: int = TOKENS, heads: int = 8, width: int = 128) -> None:
        shape = (LAYERS, 2, BLOCKS, BLOCK, heads, width)
        self.tensors = list(np.random.default_rng(seed).integers(0, 2**16, shape, dtype=np.uint16))
        layout = engine_layouts.kv_first(self.tensors)
        self.paged = PagedCache(layout, PageLayout.of(layout, page_tokens))

    def keys(self, prompt: int, pages: int) -> Keys:
        tokens, layout = self.paged.page.tokens, self.paged.page.layout
        space = Namespace(model="test", dtype="uint16", page_tokens=tokens, layout=layout)
        return space.keys(range(prompt << 16, (prompt << 16) + tokens * pages))

    def tokens(self, slots: SlotMap) -> Any:
        """Returns the state of the tokens of a request, token by token."""
        places = slots.pages["position"][0] + np.arange(len(slots) * slots.page_tokens)
        return np.stack([one[:, slots.blocks[places // BLOCK], places % BLOCK] for one in self.tensors])


class CopyingEngine(PagedEngine):
    """An engine with a copier, and pages of 256 KiB."""

    def __init__(self, client: Client, seed: int, settings: CopySettings = COPYING) -> None:
        super().__init__(seed)
        self.client = client
        device = HostDevice()
        self.copier = AsyncCopier(client, self.paged, device, settings, ended=device.close)

    def load(self, keys: Keys, slots: SlotMap, **options: Any) -> LoadHandle:
        with self.client.match(keys) as match:
            return self.copier.load(match, slots, **options)

    def number(self, prompt: int) -> None:
        """Fills the whole cache with the content of a prompt."""
        for tensor in self.tensors:
            tensor[:] = prompt

    def says(self, slots: SlotMap, prompt: int) -> bool:
        return bool((self.tokens(slots) == prompt).all())

    def store_and_load(self, prompt: int, slots: SlotMap) -> None:
        """Stores and loads a prompt."""
        self.number(prompt)
        self.copier.store(self.keys(prompt, len(slots)), slots).wait(PATIENCE_S)
        self.number(0)
        self.load_exactly(prompt, slots)

    def load_exactly(self, prompt: int, slots: SlotMap) -> None:
        """Loads a prompt, and asserts that each page that is found has its content."""
        load = self.load(self.keys(prompt, len(slots)), slots)
        assert load.wait(LAYERS - 1, PATIENCE_S) and load.wait_ended(PATIENCE_S)
        if load.pages:
            assert self.says(slots.some(0, load.pages), prompt)


def slots_of(pages: int, seed: int = 1, page_tokens: int = TOKENS) -> SlotMap:
    """Returns the slots of pages in random blocks."""
    blocks = np.random.default_rng(seed).permutation(BLOCKS)[: -(-pages * page_tokens // BLOCK)]
    return slot_map(blocks, pages, page_tokens, BLOCK)


def release_arena(client: Client) -> None:
    """Releases the arena for copies whose end no copier sees, for which a client would wait forever to end."""
    session = client.session
    while session is not None and not session.retire():
        with suppress(RuntimeError):  # a thread that is ending has just released the last one
            session.release_arena()
