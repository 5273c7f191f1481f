"""Pages that lie in the blocks of an engine's cache: what load and store take instead of buffers."""

from __future__ import annotations

from typing import Final

import msgspec

from pagetier.client.keys import Namespace
from pagetier.kernels.host.copy import require_host
from pagetier.kernels.layout.page_layout import PageLayout, Shard
from pagetier.kernels.layout.slot_map import SlotMap
from pagetier.kernels.layout.transfer import PagedCache, Transfer
from pagetier.shm._core import PARTS
from pagetier.shm.cached import CachedProperty


class Part(msgspec.Struct, frozen=True):
    """Which share of every page this writer fills: part `index` of `count`, up to 32.

    A page is readable once all parts of it were stored. Parts of buffers are equal pieces of a page.

    division: a u32 that stands for how pages are cut into parts. Parts of two divisions never make one page.
    """

    index: int = 0
    count: int = 1
    division: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.count <= PARTS or not 0 <= self.index < self.count:
            raise ValueError(f"part {self.index} of {self.count}: 1 to {PARTS} parts, counted from 0")


WHOLE: Final = Part()


class Blocks(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Pages in blocks of one rank's cache, in host memory.

    slots: an item for each page. cache: as long as it lives, so does the engine's memory.
    """

    cache: PagedCache
    slots: SlotMap

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def part(self) -> Part:
        """What this rank stores of every page."""
        return part_of(self.cache.shard)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, with the parts of all ranks."""
        return self.cache.page.nbytes

    def whole(self, count: int) -> tuple[Transfer, ...]:
        """As storing; raises ValueError, too, unless these are `count` pages, all but those to skip with all tokens."""
        self.slots.require_whole(count)
        return self.storing

    @CachedProperty
    def loading(self) -> Transfer:
        """Raises ValueError for a cache that is not in host memory, and as PagedCache.loading does."""
        transfer = self.cache.loading(self.slots)
        require_host(transfer)
        return transfer

    @CachedProperty
    def storing(self) -> tuple[Transfer, ...]:
        """Raises ValueError for a cache that is not in host memory, and as PagedCache.storing does."""
        transfers = self.cache.storing(self.slots)
        for transfer in transfers:
            require_host(transfer)
        return transfers


def part_of(shard: Shard) -> Part:
    """What a process with this share of a model stores of every page."""
    return Part(shard.part, shard.parts, shard.division)


def require_named(namespace: Namespace, page: PageLayout) -> None:
    """Raises ValueError unless pages of the namespace are in this order: others would mean something else.

    A snapshot is one row, however many tokens it stands for.
    """
    if namespace.layout != page.layout or page.tokens not in (1, namespace.page_tokens):
        raise ValueError(
            f"pages of {namespace.name} have {namespace.page_tokens} tokens and the layout {namespace.layout!r},"
            f" but the cache's have {page.tokens} and {page.layout!r}: PageLayout.layout belongs into the Namespace"
        )
