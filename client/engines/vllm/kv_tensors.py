"""Describes vLLM's cache tensors of one group for the copies.

The layout depends on vLLM's version and the attention backend; it is recognised by the shape of the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.engines.vllm.group_kinds import has_latents, kind_of, layer_specs
from pagetier.client.groups import Recurrent
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.cache_layout import CacheLayout, Plane
from pagetier.kernels.layout.page_layout import PageLayout, Rows, Shard
from pagetier.kernels.layout.slot_map import SlotMap
from pagetier.kernels.layout.struct_dtypes import token_rows
from pagetier.kernels.layout.transfer import PagedCache

LayerCache: TypeAlias = Any
"""The cache of one layer: a tensor, or several tensors for recurrent state."""

_NO_SKIP: Final = np.zeros(0, np.uint8)


def paged_cache(layers: Sequence[LayerCache], spec: Any, shard: Shard, model_heads: int) -> PagedCache:
    """Returns the cache of a group on this rank.

    Args:
        layers: The tensors of the layers, in the model's order.
        spec: The group's KVCacheSpec, of this rank.
        shard: This rank's shard.
        model_heads: KV heads of the whole model; if it has fewer than ranks, several ranks have the same heads.

    Raises:
        UnsupportedError: The tensors have other blocks or heads than vLLM specifies.
        LayoutError: The tensors have an unknown shape, or the layout cannot be copied.
    """
    if isinstance(kind_of(spec), Recurrent):
        return _whole(engine_layouts.states([_several(layer) for layer in layers]), 1, shard, shard.ranks)
    cache = engine_layouts.vllm_of_any_version(layers)
    _check_heads(cache, spec)
    if spec.block_size % cache.block_tokens:
        raise UnsupportedError(
            f"vLLM specifies blocks of {spec.block_size} tokens, its tensors have blocks of {cache.block_tokens}"
        )
    return _whole(cache, spec.block_size, shard, 1 if has_latents(spec) else model_heads)


def slots_to_store(cache: PagedCache, blocks: Sequence[int], page_blocks: int) -> SlotMap:
    """Returns one page for each `page_blocks` blocks, in this order. A page with vLLM's null block, 0, is skipped."""
    ids: npt.NDArray[np.int32] = np.array(blocks, np.int32)
    without = np.equal(ids, 0).reshape(-1, page_blocks).any(axis=1)
    skip = np.asarray(without, np.uint8) if 0 in blocks else _NO_SKIP
    return cache.in_a_row(_table(cache, ids, page_blocks), skip)


def slots_to_load(cache: PagedCache, blocks: Sequence[int], page_blocks: int) -> SlotMap:
    """Returns one page for each `page_blocks` blocks, of which those are written that follow the last block 0."""
    ids: npt.NDArray[np.int32] = np.array(blocks, np.int32)
    slots = cache.in_a_row(_table(cache, ids, page_blocks), _NO_SKIP)
    if 0 not in blocks:
        return slots
    kept = (np.equal(ids, 0).reshape(-1, page_blocks) * np.arange(1, page_blocks + 1)).max(1)
    first = kept * (cache.page.tokens // page_blocks)
    return msgspec.structs.replace(slots, pages=token_rows(slots.pages["position"], first, slots.pages["end"]))


def _table(cache: PagedCache, ids: npt.NDArray[np.int32], page_blocks: int) -> npt.NDArray[np.int32]:
    """Returns the blocks of the tensors, of which a block of vLLM may have several."""
    ratio = cache.page.tokens // (cache.cache.block_tokens * page_blocks)
    return ids if ratio == 1 else np.add.outer(ids * np.int32(ratio), np.arange(ratio, dtype=np.int32)).reshape(-1)


def _check_heads(cache: CacheLayout, spec: Any) -> None:
    """Checks that the planes have as many heads as specified.

    Some quantised caches have the heads of K and V in one axis, which cannot be divided among ranks.

    Raises:
        UnsupportedError: The numbers of heads differ.
    """
    specified, found = {one.num_kv_heads for one in layer_specs(spec)}, {plane.heads for plane in cache.planes}
    if not found <= specified:
        raise UnsupportedError(f"vLLM specifies {sorted(specified)} heads, its tensors have {sorted(found)} heads")


def _several(layer: LayerCache) -> Sequence[Any]:
    """Returns the states of a layer: from 0.30 on they are one tensor of bytes, before that a list of tensors."""
    return layer if isinstance(layer, (list, tuple)) else [layer]


def _whole(cache: CacheLayout, tokens: int, shard: Shard, heads: int) -> PagedCache:
    """Returns the cache with the page layout of the whole model, which each rank derives from its own cache."""

    def rows(plane: Plane) -> Rows:
        count = plane.heads * shard.ranks if heads >= shard.ranks else heads
        return Rows(plane.kind, plane.dtype, count, plane.width)

    layout = PageLayout(tokens, tuple(tuple(map(rows, planes)) for planes in cache.by_layer))
    return PagedCache(cache, layout, shard)
