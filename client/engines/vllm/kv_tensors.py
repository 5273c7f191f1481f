"""Describes vLLM's cache tensors of one group for the copies.

The layout depends on vLLM's version and the attention backend; it is recognised by the shape of the tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.engines.vllm.draft_model import draft_model_of
from pagetier.client.engines.vllm.group_kinds import has_latents, kind_of, layer_specs
from pagetier.client.groups import Recurrent
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.cache_layout import CacheLayout, LayoutError, Plane, cache_of
from pagetier.kernels.layout.page_layout import OpaqueRow, PageLayout, Rows, Shard
from pagetier.kernels.layout.slot_map import SlotMap
from pagetier.kernels.layout.tables import token_rows
from pagetier.kernels.layout.tensors import View, view_of
from pagetier.kernels.layout.transfer import PagedCache

LayerCache: TypeAlias = Any
"""The cache of one layer: a tensor, or several tensors for recurrent state."""

_NO_SKIP: Final = np.zeros(0, np.uint8)
_OWN: Final = "of a rank"  # is part of the kinds of planes whose bytes mean something on their own rank only
_KV_HEADS: Final = re.compile(
    r"(?<!indexer_)(kv|key_value)\w*head|head\w*kv|query_group|attention_groups|heads_in_group"
)


def kv_heads(config: Any, ranks: int) -> int:
    """Returns the KV heads of each layer of the whole model; at least `ranks` if not all layers have as many.

    Where a rank has one head of a layer, its tensors do not show whether other ranks have the same one. With several
    numbers of heads in a model or beside its draft, each rank is taken to have a head of its own.

    Args:
        config: vLLM's VllmConfig.
        ranks: The ranks that divide the heads.
    """
    draft = draft_model_of(config)
    models = [config.model_config, *([draft.model_config] if draft is not None else [])]
    heads = int(models[0].get_total_num_kv_heads())
    settings = (getattr(model, "hf_text_config", model.hf_config).to_dict() for model in models)
    counts = {int(model.get_total_num_kv_heads()) for model in models}.union(*(_counts("", one) for one in settings))
    return heads if counts == {heads} else max(heads, ranks)


def _counts(name: str, value: object) -> Iterator[int]:
    """Yields each number of KV heads in the settings of a model; it may have others in some layers."""
    if isinstance(value, Mapping):
        for inner, its in value.items():
            yield from _counts(str(inner), its)
    elif isinstance(value, (list, tuple)):
        for its in value:
            yield from _counts(name, its)
    elif type(value) is int and _KV_HEADS.search(name):
        yield value


def paged_cache(
    layers: Sequence[LayerCache], spec: Any, shard: Shard, model_heads: int, page_tokens: int
) -> PagedCache:
    """Returns the cache of a group on this rank.

    Args:
        layers: The tensors of the layers, in the model's order.
        spec: The group's KVCacheSpec, of this rank.
        shard: This rank's shard.
        model_heads: See kv_heads(); if the model has fewer than ranks, several ranks have the same heads.
        page_tokens: The tokens of a page. Of ranks that divide tokens, each has a part of them.

    Raises:
        UnsupportedError: The tensors have other blocks or heads than vLLM specifies.
        LayoutError: The tensors have an unknown shape, or the layout cannot be copied.
    """
    if isinstance(kind_of(spec), Recurrent):
        states = engine_layouts.states([_several(layer) for layer in layers])
        heads = None if getattr(layer_specs(spec)[0], "tp_replicated", False) else shard.ranks
        return _whole(states, 1, shard, {layer[0].address: heads for layer in states.by_layer})
    specs = _specs_of(layers, spec)
    if any(_states(one) != page_tokens or _slots(one) is not None for one in specs):
        return _tiled(layers, specs, shard, model_heads)
    cache = engine_layouts.vllm_of_any_version(layers)
    by_address = dict(zip((view_of(layer).address for layer in layers), specs, strict=True))
    for planes in cache.by_layer:
        _check(planes[0], by_address[planes[0].address])
    heads_of = {address: 1 if has_latents(one) else model_heads for address, one in by_address.items()}
    return _whole(cache, page_tokens, shard, heads_of)


def slots_to_store(cache: PagedCache, blocks: Sequence[int], page_blocks: int) -> SlotMap:
    """Returns one page for each `page_blocks` blocks, in this order. A page with vLLM's null block, 0, is skipped."""
    ids: npt.NDArray[np.int32] = np.array(blocks, np.int32)
    table = _table(cache, ids, page_blocks)
    if 0 not in blocks:
        return cache.in_a_row(table, _NO_SKIP)
    without = np.equal(ids, 0).reshape(-1, page_blocks).any(axis=1)
    return cache.in_a_row(table, np.asarray(without, np.uint8))


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


def _specs_of(layers: Sequence[LayerCache], spec: Any) -> tuple[Any, ...]:
    specs = layer_specs(spec)
    if len(specs) not in (1, len(layers)):
        raise UnsupportedError(f"vLLM specifies {len(specs)} layers of a group, which has {len(layers)}")
    return specs if len(specs) > 1 else specs * len(layers)


def _states(spec: Any) -> int:
    """Returns the states in a block of a layer, which are its tokens unless a state is that of several tokens."""
    return int(spec.block_size // getattr(spec, "tokens_per_state", 1))


def _slots(spec: Any) -> int | None:
    """Returns the slots of a layer that packs K and V of several heads and tokens together; None for other layers."""
    slots: int | None = getattr(spec, "num_head_slots", None)
    return slots


def _check(plane: Plane, spec: Any) -> None:
    """Checks that a layer has as many heads and states as specified.

    Some quantised caches have the heads of K and V in one axis, which cannot be divided among ranks.

    Raises:
        UnsupportedError: The numbers differ.
    """
    if plane.heads != spec.num_kv_heads:
        raise UnsupportedError(f"vLLM specifies {spec.num_kv_heads} heads, its tensors have {plane.heads} heads")
    if _states(spec) % plane.tokens:
        raise UnsupportedError(
            f"vLLM specifies blocks of {_states(spec)} tokens, its tensors have blocks of {plane.tokens}"
        )


def _several(layer: LayerCache) -> Sequence[Any]:
    """Returns the states of a layer: from 0.30 on they are one tensor of bytes, before that a list of tensors."""
    return layer if isinstance(layer, (list, tuple)) else [layer]


def _tiled(layers: Sequence[LayerCache], specs: Sequence[Any], shard: Shard, model_heads: int) -> PagedCache:
    """Returns the cache of layers whose blocks are copied without looking into them: as tiles.

    Layers with several numbers of states in a block have no rows in common, and the rows of one with fewer states than
    a page has tokens are no tokens. Where a tile has several heads it means something on its own rank only: engines
    with other numbers of ranks share no pages.
    """
    tiles = [_tile(_four_axes(view_of(layer)), spec) for layer, spec in zip(layers, specs, strict=True)]
    heads = {
        view.address: shard.ranks if _OWN in kind else None if has_latents(spec) else model_heads
        for (kind, view), spec in zip(tiles, specs, strict=True)
    }
    return _whole(cache_of([[tile] for tile in tiles]), 1, shard, heads)


def _four_axes(view: View) -> View:
    """Returns a layer with the axes blocks, heads, states, bytes. Raises UnsupportedError if K and V are apart."""
    if len(view.shape) == 3:
        return view.grown(1)
    if len(view.shape) != 4:
        raise UnsupportedError("pages that are not the tokens of a block need vLLM 0.30 or later")
    return view


def _tile(view: View, spec: Any) -> tuple[str, View]:
    """Returns the tiles of a layer [blocks, heads, states, bytes] and their kind.

    Each block of vLLM is a token of one or more tiles. The kernels may divide it into smaller blocks.

    Raises:
        LayoutError: Neither the states of a head in a block are contiguous, nor those of all heads.
    """
    blocks, heads, states, width = view.shape
    stride, head, state, element = view.strides
    row, parts = width * view.itemsize, _states(spec) // states
    if element != view.itemsize or _states(spec) % states or not parts or blocks % parts:
        raise LayoutError(f"a block of {_states(spec)} states cannot be found in a layer of shape {list(view.shape)}")
    heads_first = states == 1 or state == row
    if heads_first and (parts == 1 or stride == states * row):
        shape = (blocks // parts, 1, heads, parts * states * width)
        tiles = msgspec.structs.replace(view, shape=shape, strides=(parts * stride, 0, head, element))
        return ("tile" if _slots(spec) is None else f"slot {_OWN}"), tiles
    dense = (head == states * row) if heads_first else (head == row and state == heads * row)
    if dense and (parts == 1 or stride == heads * states * row):
        shape = (blocks // parts, 1, 1, parts * heads * states * width)
        tiles = msgspec.structs.replace(view, shape=shape, strides=(parts * stride, 0, 0, element))
        return f"{parts} blocks {_OWN}, {'heads' if heads_first else 'states'} first", tiles
    raise LayoutError(f"a block of a layer is not contiguous: shape {list(view.shape)}, strides {list(view.strides)}")


def _whole(cache: CacheLayout, tokens: int, shard: Shard, heads: Mapping[int, int | None]) -> PagedCache:
    """Returns the cache with the page layout of the whole model, which each rank derives from its own cache.

    `heads` has the heads of the whole model in a layer by the address of its first plane, None for opaque rows that
    all ranks have.
    """

    def rows(plane: Plane, of_model: int | None) -> Rows:
        if of_model is None:
            return OpaqueRow.of(plane)
        count = plane.heads * shard.ranks if of_model >= shard.ranks else of_model
        return Rows(plane.kind, plane.dtype, count, plane.width)

    layers = [tuple(rows(plane, heads[planes[0].address]) for plane in planes) for planes in cache.by_layer]
    return PagedCache(cache, PageLayout(tokens, tuple(layers)), shard)
