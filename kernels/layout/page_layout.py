"""The canonical byte order of a page, which is the same at every parallel degree, and each rank's share of it.

A page holds all layers and heads of the model (of one group of its layers): layer by layer, in a layer plane by plane
(K, then V), in a plane head by head, in a head token by token. Each plane begins at a multiple of 16 bytes; the bytes
between two planes are never written and have no meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Final, Self

import msgspec

from pagetier.kernels.layout.cache_layout import CacheLayout, LayoutError, Plane
from pagetier.shm.cached import CachedProperty

ALIGNMENT: Final = 16
_MOST_BYTES: Final = 1 << 31  # offsets in a page are 32-bit numbers in the kernels
_VERSION: Final = b"pagetier page order 1"
_DIVISION: Final = b"pagetier division 1"


class Rows(msgspec.Struct, frozen=True):
    """A plane of a page: `heads` heads of the model, with a row of `width` bytes for each head and token."""

    kind: str
    dtype: str
    heads: int
    width: int

    @classmethod
    def of(cls, plane: Plane) -> Self:
        """Returns the rows of a plane whose cache holds all heads of the model."""
        return cls(plane.kind, plane.dtype, plane.heads, plane.width)


class OpaqueRow(Rows, frozen=True, tag="opaque row"):
    """A plane of a page with one row of bytes of unknown content, which all ranks have. One of them stores it."""


class PageLayout(msgspec.Struct, frozen=True, dict=True):
    """The content of a page of `tokens` tokens and its order.

    Raises LayoutError for 2 GiB or more, or an empty page.
    """

    tokens: int
    layers: tuple[tuple[Rows, ...], ...]

    def __post_init__(self) -> None:
        rows = [rows for layer in self.layers for rows in layer]
        if self.tokens < 1 or not rows or min(min(row.heads, row.width) for row in rows) < 1:
            raise LayoutError("a page needs at least one token, and a plane with at least one head and byte")
        if self.nbytes >= _MOST_BYTES:
            raise LayoutError(f"a page of {self.nbytes} bytes is too large: the limit is {_MOST_BYTES - 1}")

    @classmethod
    def of(cls, cache: CacheLayout, tokens: int) -> PageLayout:
        """Returns the page of a cache that holds the whole model."""
        return cls(tokens, tuple(tuple(map(Rows.of, planes)) for planes in cache.by_layer))

    @classmethod
    def of_rows(cls, cache: CacheLayout) -> PageLayout:
        """Returns the page of a cache of opaque rows (see engine_layouts.rows()) that all ranks have alike."""
        return cls(1, tuple(tuple(map(OpaqueRow.of, planes)) for planes in cache.by_layer))

    @classmethod
    def of_model(cls, cache: CacheLayout, tokens: int, heads: int | Mapping[str, int], layers: int) -> PageLayout:
        """Returns the page of a whole model, derived from one rank's cache.

        Args:
            cache: The cache of any rank; all ranks derive the same page.
            tokens: Tokens of a page.
            heads: The heads of the whole model, for all planes or by kind. A kind that is not named has all of its
                heads in this cache.
            layers: The layers of all pipeline stages together. If there are more than in the cache, all layers must be
                alike.

        Returns:
            The page.

        Raises:
            LayoutError: The cache has no plane of a named kind, or its layers differ and are not all of the model's.
        """
        own = cls.of(cache, tokens).layers
        _check_kinds(heads, own)
        if layers != len(own) and len(set(own)) > 1:
            raise LayoutError("the layers differ, so one pipeline stage does not determine the page of the whole model")
        planes = [own[at if layers == len(own) else 0] for at in range(layers)]
        return cls(tokens, tuple(tuple(_with_heads(row, heads) for row in layer) for layer in planes))

    @CachedProperty
    def offsets(self) -> tuple[tuple[int, ...], ...]:
        """The offset of each plane in the page, layer by layer."""
        return self._laid_out[0]

    @CachedProperty
    def nbytes(self) -> int:
        """The size of a page in bytes."""
        return self._laid_out[1]

    def writers(self, ranks: int) -> list[list[int | None]]:
        """Returns the rank that stores each opaque row, None for other planes. Ranks store about as many bytes."""
        stored = [0] * ranks
        return [[_writer(rows, stored) for rows in layer] for layer in self.layers]

    @CachedProperty
    def _laid_out(self) -> tuple[tuple[tuple[int, ...], ...], int]:
        at, offsets = 0, []
        for layer in self.layers:
            begins = []
            for rows in layer:
                begins.append(-(-at // ALIGNMENT) * ALIGNMENT)
                at = begins[-1] + rows.heads * self.tokens * rows.width
            offsets.append(tuple(begins))
        return tuple(offsets), at

    @CachedProperty
    def layout(self) -> str:
        """The text for Namespace.layout: equal only for pages whose bytes have the same meaning."""
        return f"page-1-{sha256(_VERSION + msgspec.msgpack.encode(self)).hexdigest()[:32]}"

    def __repr__(self) -> str:
        return f"<PageLayout {self.tokens} tokens, {len(self.layers)} layers, {self.nbytes / 2**20:.1f} MiB>"


def _writer(rows: Rows, stored: list[int]) -> int | None:
    """Returns the rank that has stored the fewest bytes, and counts those of an opaque row as stored by it."""
    if not isinstance(rows, OpaqueRow):
        return None
    writer = stored.index(min(stored))
    stored[writer] += rows.width
    return writer


def _check_kinds(heads: int | Mapping[str, int], layers: tuple[tuple[Rows, ...], ...]) -> None:
    named = set() if isinstance(heads, int) else set(heads)
    if unknown := named - {rows.kind for layer in layers for rows in layer}:
        raise LayoutError(f"heads are given for {', '.join(sorted(unknown))}, but the cache has no plane of that kind")


def _with_heads(rows: Rows, heads: int | Mapping[str, int]) -> Rows:
    count = heads if isinstance(heads, int) else heads.get(rows.kind, rows.heads)
    return msgspec.structs.replace(rows, heads=count)


class Heads(msgspec.Struct, frozen=True):
    """The heads of a plane on one rank: `count` from `first` on.

    This rank is `replica` of the `replicas` that have them.
    """

    first: int
    count: int
    replica: int
    replicas: int

    def tokens(self, tokens: int) -> range:
        """Returns the tokens of a page that this replica stores."""
        return range(tokens * self.replica // self.replicas, tokens * (self.replica + 1) // self.replicas)


class Shard(msgspec.Struct, frozen=True):
    """The share of a model in one process: its tensor-parallel rank and pipeline stage.

    Attributes:
        rank: The tensor-parallel rank.
        ranks: The number of tensor-parallel ranks.
        stage: The pipeline stage.
        stages: The number of layers of each stage, the same in all processes of an engine; empty for a single stage.
    """

    rank: int = 0
    ranks: int = 1
    stage: int = 0
    stages: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        stages = self.stages or (1,)
        if not 0 <= self.rank < self.ranks or not 0 <= self.stage < len(stages) or min(stages) < 1:
            raise LayoutError(f"{self} is invalid: ranks and stages count from 0, and a stage has at least one layer")

    @property
    def part(self) -> int:
        """The part of a page that this process stores, from 0 to `parts` - 1."""
        return self.stage * self.ranks + self.rank

    @property
    def parts(self) -> int:
        """The number of parts of a page."""
        return max(1, len(self.stages)) * self.ranks

    @property
    def division(self) -> int:
        """A u32 that identifies how pages are divided among the processes; 0 for a single process."""
        text = _DIVISION + msgspec.msgpack.encode([self.ranks, self.stages if len(self.stages) > 1 else ()])
        return int.from_bytes(sha256(text).digest()[:4], "little") if self.parts > 1 else 0

    def layers(self, of_page: int) -> range:
        """Returns the layers of this stage, counted over the page. Raises LayoutError if the stages do not add up."""
        stages = self.stages or (of_page,)
        if sum(stages) != of_page:
            raise LayoutError(f"the stages have {sum(stages)} layers, but the page has {of_page}")
        first = sum(stages[: self.stage])
        return range(first, first + stages[self.stage])

    def heads(self, of_model: int) -> Heads:
        """Returns this rank's share of a plane's heads.

        Where there are fewer heads than ranks, several ranks share a head.

        Raises:
            LayoutError: Neither number divides the other.
        """
        if of_model % self.ranks == 0:
            count = of_model // self.ranks
            return Heads(self.rank * count, count, 0, 1)
        if self.ranks % of_model == 0:
            replicas = self.ranks // of_model
            return Heads(self.rank // replicas, 1, self.rank % replicas, replicas)
        raise LayoutError(f"{of_model} heads cannot be divided among {self.ranks} ranks")


UNSHARDED: Final = Shard()
