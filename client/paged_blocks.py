"""Pages in the blocks of an engine's cache, which load() and store() take instead of buffers."""

from __future__ import annotations

from typing import Final

import msgspec

from pagetier.client.keys import Namespace
from pagetier.kernels.layout.page_layout import PageLayout, Shard
from pagetier.kernels.layout.slot_map import SlotMap
from pagetier.kernels.layout.transfer import PagedCache, Transfer
from pagetier.shm._core import PARTS
from pagetier.shm.cached import CachedProperty


class Part(msgspec.Struct, frozen=True):
    """The part of every page that one writer stores.

    A page is readable once all of its parts are stored. With buffers, parts are equal pieces of a page.

    Attributes:
        index: The part, from 0.
        count: The number of parts, 1 to 32.
        division: A u32 that identifies how pages are cut into parts. Parts of two divisions never form one page.

    Raises:
        ValueError: `count` is not in 1 .. 32, or `index` is not in 0 .. count-1.
    """

    index: int = 0
    count: int = 1
    division: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.count <= PARTS or not 0 <= self.index < self.count:
            raise ValueError(
                f"part {self.index} of {self.count} is not valid: a page has 1 to {PARTS} parts, counted from 0"
            )


WHOLE: Final = Part()


def required_part(part: object) -> Part:
    """Returns the part. Raises TypeError unless it is one."""
    if isinstance(part, Part):
        return part
    raise TypeError(f"part must be a Part(index, count), not {type(part).__name__}")


class Blocks(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Pages in the blocks of one rank's cache, in host memory.

    len() is the number of pages.

    Attributes:
        cache: The cache. It keeps the engine's memory alive.
        slots: The position of each page in the cache.
    """

    cache: PagedCache
    slots: SlotMap

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def part(self) -> Part:
        """The part of every page that this rank stores."""
        return part_of(self.cache.shard)

    @property
    def page_bytes(self) -> int:
        """The size of a page in bytes, with the parts of all ranks."""
        return self.cache.page.nbytes

    def whole(self, count: int) -> tuple[Transfer, ...]:
        """Returns `storing`, after verifying that there are `count` pages and that each page is complete or skipped.

        Raises ValueError for another number of pages, for a page that lacks tokens but is not skipped, and as
        `storing`.
        """
        self.slots.require_whole(count)
        return self.storing

    @CachedProperty
    def loading(self) -> Transfer:
        """The copy that loads the pages. Raises ValueError for a cache on a GPU, or as PagedCache.loading() does."""
        transfer = self.cache.loading(self.slots)
        transfer.require_host()
        return transfer

    @CachedProperty
    def storing(self) -> tuple[Transfer, ...]:
        """The copies that store this part. Raises ValueError for a cache on a GPU and as PagedCache.storing()."""
        transfers = self.cache.storing(self.slots)
        for transfer in transfers:
            transfer.require_host()
        return transfers


def require_named(namespace: Namespace, page: PageLayout) -> None:
    """Verifies that the namespace has the layout and the page length of these pages.

    Bytes in another order would have another meaning. A snapshot is one row, regardless of its number of tokens.

    Raises:
        ValueError: It has not.
    """
    if namespace.layout != page.layout or page.tokens not in (1, namespace.page_tokens):
        raise ValueError(
            f"{namespace.name} differs from the cache: set the Namespace's layout to PageLayout.layout and its"
            f" page_tokens to {page.tokens}"
        )


def part_of(shard: Shard) -> Part:
    """Returns the part of every page that a process with this shard of a model stores."""
    return Part(shard.part, shard.parts, shard.division)
