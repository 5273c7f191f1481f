"""The canonical order of a page's bytes, the same at every parallel degree, and which share of it a rank has.

A page holds all layers and heads of the model (of one group of its layers): layer by layer, in a layer plane by plane
(K, then V), in a plane head by head, in a head token by token. Each plane begins at a multiple of 16 bytes; the bytes
between two planes are never written and mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from typing import Final

import msgspec

from .layout import CacheLayout, LayoutError, Plane

ALIGNMENT: Final = 16
_MOST_BYTES: Final = 1 << 31  # offsets in a page are 32-bit numbers in the kernels
_VERSION: Final = b"pagetier page order 1"
_DIVISION: Final = b"pagetier division 1"


class Rows(msgspec.Struct, frozen=True):
    """A plane of a page: `heads` heads of the model, rows of `width` bytes for each of them and each token."""

    kind: str
    dtype: str
    heads: int
    width: int

    @classmethod
    def of(cls, plane: Plane) -> Rows:
        """What a plane of a cache looks like if its heads are all there are."""
        return cls(plane.kind, plane.dtype, plane.heads, plane.width)


class PageOrder(msgspec.Struct, frozen=True, dict=True):
    """What is in a page of `tokens` tokens, and where. Raises LayoutError for 2 GiB or more, or nothing."""

    tokens: int
    layers: tuple[tuple[Rows, ...], ...]

    def __post_init__(self) -> None:
        rows = [rows for layer in self.layers for rows in layer]
        if self.tokens < 1 or not rows or min(min(row.heads, row.width) for row in rows) < 1:
            raise LayoutError("a page has at least one token, and a plane of at least one head and byte")
        if self.nbytes >= _MOST_BYTES:
            raise LayoutError(f"a page of {self.nbytes} bytes: it has to be below {_MOST_BYTES}")

    @classmethod
    def of(cls, cache: CacheLayout, tokens: int) -> PageOrder:
        """Of a cache that holds the whole model."""
        return cls(tokens, tuple(tuple(map(Rows.of, planes)) for planes in cache.by_layer))

    @classmethod
    def of_model(cls, cache: CacheLayout, tokens: int, heads: int | Mapping[str, int], layers: int) -> PageOrder:
        """Of a model, from one rank's cache.

        Args:
            cache: of any rank; all of them get the same order out of theirs.
            tokens: of a page.
            heads: of the whole model, of every plane or by kind; a kind that is not named has all of its own here.
            layers: of all stages together. If they are more than the cache's, all layers are alike.

        Raises:
            LayoutError: heads of a kind that the cache does not have, layers of which the cache has not enough to tell.
        """
        own = cls.of(cache, tokens).layers
        _check_kinds(heads, own)
        if layers != len(own) and len(set(own)) > 1:
            raise LayoutError("layers that differ: a page of the whole model can not be told from one stage's")
        planes = [own[at if layers == len(own) else 0] for at in range(layers)]
        return cls(tokens, tuple(tuple(_with_heads(row, heads) for row in layer) for layer in planes))

    @cached_property
    def offsets(self) -> tuple[tuple[int, ...], ...]:
        """Where each plane begins, layer by layer."""
        return self._laid_out[0]

    @cached_property
    def nbytes(self) -> int:
        """Bytes of a page."""
        return self._laid_out[1]

    @cached_property
    def _laid_out(self) -> tuple[tuple[tuple[int, ...], ...], int]:
        at, offsets = 0, []
        for layer in self.layers:
            begins = []
            for rows in layer:
                begins.append(-(-at // ALIGNMENT) * ALIGNMENT)
                at = begins[-1] + rows.heads * self.tokens * rows.width
            offsets.append(tuple(begins))
        return tuple(offsets), at

    @cached_property
    def layout(self) -> str:
        """A text for Namespace.layout: two orders have the same one only if their bytes mean the same."""
        return f"page-1-{sha256(_VERSION + msgspec.msgpack.encode(self)).hexdigest()[:32]}"

    def __repr__(self) -> str:
        return f"<PageOrder {self.tokens} tokens, {len(self.layers)} layers, {self.nbytes / 2**20:.1f} MiB>"


def _check_kinds(heads: int | Mapping[str, int], layers: tuple[tuple[Rows, ...], ...]) -> None:
    named = set() if isinstance(heads, int) else set(heads)
    if unknown := named - {rows.kind for layer in layers for rows in layer}:
        raise LayoutError(f"heads of {', '.join(sorted(unknown))}, but no plane of the cache is of that kind")


def _with_heads(rows: Rows, heads: int | Mapping[str, int]) -> Rows:
    count = heads if isinstance(heads, int) else heads.get(rows.kind, rows.heads)
    return msgspec.structs.replace(rows, heads=count)


class Heads(msgspec.Struct, frozen=True):
    """Heads of a plane that one rank has: `count` from `first` on; `replicas` ranks have them, this is `replica`."""

    first: int
    count: int
    replica: int
    replicas: int

    def tokens(self, tokens: int) -> range:
        """Those of a page that this one of the replicas stores."""
        return range(tokens * self.replica // self.replicas, tokens * (self.replica + 1) // self.replicas)


class Shard(msgspec.Struct, frozen=True):
    """Which share of a model a process has: tensor-parallel rank, and pipeline stage.

    rank, ranks: of how many tensor-parallel ones. stage: which pipeline stage. stages: layers of each stage, the same
    for all processes of an engine; empty: there is one, which has them all.
    """

    rank: int = 0
    ranks: int = 1
    stage: int = 0
    stages: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        stages = self.stages or (1,)
        if not 0 <= self.rank < self.ranks or not 0 <= self.stage < len(stages) or min(stages) < 1:
            raise LayoutError(f"{self}: ranks and stages are counted from 0, and a stage has at least one layer")

    @property
    def part(self) -> int:
        """Which part of a page it stores, of `parts`."""
        return self.stage * self.ranks + self.rank

    @property
    def parts(self) -> int:
        """Of how many parts a page is made."""
        return max(1, len(self.stages)) * self.ranks

    @property
    def division(self) -> int:
        """A u32 that stands for how pages are divided among all processes; 0: there is one process."""
        text = _DIVISION + msgspec.msgpack.encode([self.ranks, self.stages if len(self.stages) > 1 else ()])
        return int.from_bytes(sha256(text).digest()[:4], "little") if self.parts > 1 else 0

    def layers(self, of_page: int) -> range:
        """Those of its stage, counted over the page. Raises LayoutError if the stages have another number of them."""
        stages = self.stages or (of_page,)
        if sum(stages) != of_page:
            raise LayoutError(f"stages of {sum(stages)} layers, but the page has {of_page}")
        first = sum(stages[: self.stage])
        return range(first, first + stages[self.stage])

    def heads(self, of_model: int) -> Heads:
        """Its share of a plane's heads. Where there are fewer heads than ranks, several ranks have each.

        Raises LayoutError if neither number divides the other.
        """
        if of_model % self.ranks == 0:
            count = of_model // self.ranks
            return Heads(self.rank * count, count, 0, 1)
        if self.ranks % of_model == 0:
            replicas = self.ranks // of_model
            return Heads(self.rank // replicas, 1, self.rank % replicas, replicas)
        raise LayoutError(f"{of_model} heads can not be divided among {self.ranks} ranks")


ALONE: Final = Shard()
