"""Turns what an engine knows about its KV cache into page layout, shard and namespace, and rejects wrong pairings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypedDict

import msgspec

from pagetier.client.arguments import integer_of
from pagetier.client.groups import FullAttention, Group, Recurrent
from pagetier.client.keys import Namespace
from pagetier.kernels.layout.cache_layout import CacheLayout, LayoutError, Plane
from pagetier.kernels.layout.named_layouts import KvCaches, cache_layout_of
from pagetier.kernels.layout.page_layout import OpaqueRow, PageLayout, Rows, Shard
from pagetier.kernels.layout.transfer import PagedCache
from pagetier.shm._core import PARTS

_NAMELESS: Final = re.compile("void|object|record")
_BYTES: Final = (
    "uint8"  # float8_e4m3 and float8_e5m2 may both be kept as bytes; so may be a recurrent state of any type
)
_LATENTS: Final = ("mla",)


class EngineOptions(TypedDict, total=False):
    """What determines the pages of an engine besides its cache: the arguments that Client.register() passes on.

    Attributes:
        tp_rank: The tensor-parallel rank of this process; 0 by default.
        tp_size: The number of tensor-parallel ranks; 1 by default.
        pp_rank: The pipeline stage of this process; 0 by default.
        pp_layers: The number of layers of each pipeline stage; by default there is one stage.
        dtype: The type of the state, such as "bfloat16"; by default that of the tensors.
        revision: The revision of the weights.
        rope: RoPE settings that change the state.
        quantisation: Quantisation settings that change the state.
        lora: The adapter.
        salt: A text that separates tenants.
    """

    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_layers: tuple[int, ...]
    dtype: str
    revision: str
    rope: str
    quantisation: str
    lora: str
    salt: str


class CacheGroup(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The cache of one layer group on this rank, for `Client.register(groups=...)`.

    Attributes:
        kv_caches: The tensors of the group's layers, in the form that `layout` takes, or a CacheLayout.
        layout: One of LAYOUT_NAMES; ignored for a CacheLayout.
        kind: The pages that a hit needs, and their length: FullAttention(256), SlidingWindow(256, window=1024),
            Recurrent(1024). The pages of a Recurrent group are snapshots of its "states". With the layout "rows", a
            page is one block.
        num_kv_heads: KV heads of the whole model in these layers. May be left out with one tensor-parallel rank, and
            for the layouts "mla" and "states". With "rows", it is left out if all ranks have the same rows; it is the
            number of ranks if each rank has rows of its own. Or the heads by the kind of a plane: kinds that are not
            named have all of their heads on each rank.
    """

    kv_caches: KvCaches | CacheLayout
    layout: str = ""
    kind: Group
    num_kv_heads: int | Mapping[str, int] | None = None


def attention_group(
    kv_caches: KvCaches | CacheLayout, layout: str, page_tokens: int, num_kv_heads: int | Mapping[str, int] | None
) -> CacheGroup:
    """Returns the only group of a model with full attention in all layers. Raises ValueError for no page_tokens."""
    kind = FullAttention(page_tokens)
    return CacheGroup(kv_caches=kv_caches, layout=layout, kind=kind, num_kv_heads=num_kv_heads)


def shard_of(options: EngineOptions) -> Shard:
    """Returns the share of the model in this process.

    Raises:
        LayoutError: A rank is not below its number of ranks, or a page would have more than 32 parts.
    """
    rank, ranks = (integer_of(name, options.get(name, default)) for name, default in (("tp_rank", 0), ("tp_size", 1)))
    if not 0 <= rank < ranks:
        raise LayoutError(f"tp_rank = {rank} with tp_size = {ranks}: ranks count from 0 to tp_size - 1")
    shard = Shard(
        rank,
        ranks,
        integer_of("pp_rank", options.get("pp_rank", 0)),
        tuple(integer_of("pp_layers", layers) for layers in options.get("pp_layers", ())),
    )
    if shard.parts > PARTS:
        raise LayoutError(f"{shard.ranks} ranks in {len(shard.stages) or 1} stages: a page has at most {PARTS} parts")
    return shard


def paged_cache_of(group: CacheGroup, shard: Shard) -> PagedCache:
    """Returns the cache of a group with the page layout of the whole model, which all ranks derive alike.

    Raises:
        LayoutError: The tensors do not have the layout, heads or layers do not fit the ranks, or a page is not a whole
            number of blocks. The message says what to change.
    """
    given = group.kv_caches
    cache = given if isinstance(given, CacheLayout) else cache_layout_of(given, group.layout)
    opaque, recurrent = _consists_of("row", cache), isinstance(group.kind, Recurrent)
    if not opaque and recurrent != _consists_of("state", cache):
        raise LayoutError(f'a Recurrent group has the layout "states", and no other group has: this one is {cache!r}')
    if group.kind.page_tokens % cache.block_tokens:
        raise LayoutError(
            f"pages of {group.kind.page_tokens} tokens are not whole blocks of {cache.block_tokens}:"
            f" set page_tokens to a multiple of {cache.block_tokens}"
        )
    rows = tuple(tuple(_model_rows(plane, group, shard) for plane in planes) for planes in _model_layers(cache, shard))
    tokens = 1 if opaque or recurrent else group.kind.page_tokens
    return PagedCache(cache, PageLayout(tokens, rows), shard)


def namespace_of(
    paged: PagedCache, group: CacheGroup, model: str, options: EngineOptions, place: str = ""
) -> Namespace:
    """Returns the namespace of a group's pages.

    Args:
        paged: The cache of the group.
        group: The group.
        model: The model.
        options: What the engine says about itself.
        place: The place of the group among the model's groups. Groups of one kind and shape have different state, so
            without it they would find each other's pages.

    Returns:
        The namespace.

    Raises:
        LayoutError: The tensors have elements of a type without a name, and no `dtype` was given.
    """
    return Namespace(
        model=model,
        revision=options.get("revision", ""),
        dtype=options.get("dtype") or _dtype_of(paged.cache),
        page_tokens=group.kind.page_tokens,
        group=_name_of(group.kind) + place,
        layout=paged.page.layout,
        rope=options.get("rope", ""),
        quantisation=options.get("quantisation", ""),
        lora=options.get("lora", ""),
        salt=options.get("salt", ""),
    )


def _consists_of(kind: str, cache: CacheLayout) -> bool:
    """Returns whether all planes are "row"s or "state"s, whose blocks are opaque."""
    return all(plane.kind.startswith(f"{kind} ") for plane in cache.planes)


def _model_layers(cache: CacheLayout, shard: Shard) -> tuple[tuple[Plane, ...], ...]:
    """Returns the planes of all layers of the model, of which this stage has its share.

    Raises:
        LayoutError: The stage has another number of layers than the cache, or its layers differ.
    """
    own = cache.by_layer
    total = sum(shard.stages) or len(own)
    if total == len(own):
        return own
    if len({tuple((plane.kind, plane.dtype, plane.width) for plane in planes) for planes in own}) > 1:
        raise LayoutError("the layers differ, so one pipeline stage does not determine the page of the whole model")
    return (own[0],) * total


def _model_rows(plane: Plane, group: CacheGroup, shard: Shard) -> Rows:
    if plane.kind.startswith("row ") and group.num_kv_heads is None:
        return OpaqueRow.of(plane)
    return Rows(plane.kind, plane.dtype, _model_heads(plane, group, shard), plane.width)


def _model_heads(plane: Plane, group: CacheGroup, shard: Shard) -> int:
    """Returns the heads of the whole model in a plane; each rank has all states and latents of its own.

    Raises:
        LayoutError: Several ranks divide heads whose number is unknown.
    """
    if isinstance(group.kind, Recurrent) and plane.kind.startswith("state "):
        return shard.ranks
    heads = group.num_kv_heads
    if isinstance(heads, Mapping):
        heads = heads.get(plane.kind, plane.heads)
    if heads is not None:
        return integer_of("num_kv_heads", heads)
    if group.layout in _LATENTS or shard.ranks == 1:
        return plane.heads
    raise LayoutError(f"{shard.ranks} ranks divide the heads: pass num_kv_heads, the KV heads of the whole model")


def _dtype_of(cache: CacheLayout) -> str:
    first = cache.planes[0]
    name = first.dtype
    if _NAMELESS.match(name) or (name == _BYTES and not first.kind.startswith("state")):
        raise LayoutError(f'elements of type {name} may mean anything: pass dtype, such as "bfloat16" or "float8_e4m3"')
    return name


def _name_of(kind: Group) -> str:
    """Returns the text for Namespace.group: "full" for full attention, otherwise the kind with its numbers."""
    if type(kind) is FullAttention:
        return "full"
    numbers = [f"{field}={getattr(kind, field)}" for field in kind.__struct_fields__ if field != "page_tokens"]
    return " ".join([type(kind).__name__.lower(), *numbers])
