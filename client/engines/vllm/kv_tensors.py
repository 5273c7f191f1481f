"""vLLM's cache tensors of one group, as the copies take them. What shape a version or a backend has, its axes tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pagetier.client.engines.vllm.group_kinds import UnsupportedError, kind_of
from pagetier.client.groups import Recurrent
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.cache_layout import CacheLayout, Plane
from pagetier.kernels.layout.page_layout import PageLayout, Rows, Shard
from pagetier.kernels.layout.slot_map import SlotMap
from pagetier.kernels.layout.transfer import PagedCache

LayerCache: TypeAlias = Any
"""Of one layer: a tensor, or several for recurrent state."""


def paged_cache(layers: Sequence[LayerCache], spec: Any, shard: Shard, model_heads: int) -> PagedCache:
    """The cache of a group on this rank.

    Args:
        layers: in the model's order.
        spec: the group's KVCacheSpec, of this rank.
        shard: this rank's.
        model_heads: KV heads of the whole model; with fewer than ranks several have the same.

    Raises UnsupportedError for tensors of an unknown shape, and LayoutError for what can not be copied.
    """
    if isinstance(kind_of(spec), Recurrent):
        return _whole(engine_layouts.states([_several(layer) for layer in layers]), 1, shard, shard.ranks)
    cache = _attention(layers)
    _check_heads(cache, spec)
    if spec.block_size % cache.block_tokens:
        raise UnsupportedError(f"blocks of {spec.block_size} tokens, but of {cache.block_tokens} in memory")
    latent = "MLA" in type(spec).__name__
    return _whole(cache, spec.block_size, shard, 1 if latent else model_heads)


def slots_of(cache: PagedCache, blocks: Sequence[int]) -> SlotMap:
    """A page a block, in this order; block 0 is vLLM's for nothing, and left alone."""
    ids: npt.NDArray[np.int32] = np.asarray(blocks, np.int32)
    tokens, smaller = cache.page.tokens, cache.cache.block_tokens
    ratio = tokens // smaller
    table: npt.NDArray[np.int32] = np.add.outer(ids * np.int32(ratio), np.arange(ratio, dtype=np.int32)).reshape(-1)
    pages = np.zeros((len(ids), 3), np.int64)
    pages[:, 0] = np.arange(0, len(ids) * tokens, tokens)
    pages[:, 2] = tokens
    return SlotMap(tokens, smaller, table, pages, np.equal(ids, 0).astype(np.uint8))


def _check_heads(cache: CacheLayout, spec: Any) -> None:
    """Some quantised caches show K's heads and V's in one axis: ranks could not tell theirs."""
    inner = (getattr(spec, "kv_cache_specs", None) or {"": spec}).values()
    told, there = {one.num_kv_heads for one in inner}, {plane.heads for plane in cache.planes}
    if not there <= told:
        raise UnsupportedError(f"layers of {sorted(told)} heads, but of {sorted(there)} in memory")


def _several(layer: LayerCache) -> Sequence[Any]:
    """From 0.30 on all states of a layer are one tensor of bytes, before a list of them."""
    return layer if isinstance(layer, (list, tuple)) else [layer]


def _attention(layers: Sequence[LayerCache]) -> CacheLayout:
    shape = tuple(layers[0].shape)
    match shape:
        case (_, _, _, width):
            return engine_layouts.vllm(layers, k_width=width)
        case (2, _, _, _, _):
            return engine_layouts.kv_first(layers)
        case (_, 2, _, _, _):
            return engine_layouts.kv_second(layers)
        case (_, _, _):
            return engine_layouts.latents(layers)
    raise UnsupportedError(f"a cache of shape {list(shape)} is not known")


def _whole(cache: CacheLayout, tokens: int, shard: Shard, heads: int) -> PagedCache:
    """With the order of a page of the whole model, which all ranks get out of their own cache."""

    def rows(plane: Plane) -> Rows:
        count = plane.heads * shard.ranks if heads >= shard.ranks else heads
        return Rows(plane.kind, plane.dtype, count, plane.width)

    order = PageLayout(tokens, tuple(tuple(map(rows, planes)) for planes in cache.by_layer))
    return PagedCache(cache, order, shard)
