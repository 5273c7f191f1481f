"""What the scheduler's process tells the workers: which pages to load to which blocks, and which blocks to store."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagetier.client.match import MatchHandle


@dataclass(frozen=True)
class GroupLoad:
    """Pages of one group, one for each block."""

    group: int
    pages: MatchHandle
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class LoadOrder:
    """All that one request loads: all of it, or nothing of it counts."""

    request: str
    groups: tuple[GroupLoad, ...]


@dataclass(frozen=True)
class StoreOrder:
    """Pages of one group that are whole once this step is computed.

    request, first: whose pages these are, and which of its prompt the first one is. keys: 32 bytes a page. blocks: one
    a page; 0: that page is left out. held: whether the request keeps its blocks until this is stored; if not, they may
    be reused from the next step on. number: under which the workers tell what became of it; 0: nobody asks. salt:
    of the namespace that the index is to have these pages in; not shown, as it keeps tenants apart.
    """

    request: str
    group: int
    first: int
    keys: bytes
    blocks: tuple[int, ...]
    held: bool = False
    number: int = 0
    salt: str = field(kw_only=True, repr=False)


@dataclass(frozen=True)
class Orders:
    """Of one step. written: blocks that get new content in it, whatever was in them."""

    loads: tuple[LoadOrder, ...] = ()
    stores: tuple[StoreOrder, ...] = ()
    written: frozenset[int] = field(default_factory=frozenset)
