"""The caches of the engines we know, each by a constructor of its own. What is not here: layout.cache_of.

`tensors` are per layer, in the order of the model's layers; shapes are what torch says, whatever the strides are:
an engine that keeps heads before tokens in memory usually shows them in the same shape. All raise LayoutError for
tensors of another shape, on several devices, or that the copies can not address, and TypeError for what is no tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from .layout import CacheLayout, LayoutError, cache_of
from .views import Tensor, View, view_of


def vllm(tensors: Sequence[Tensor], k_width: int | None = None) -> CacheLayout:
    """As vLLM has it from 0.30 on: [blocks, heads, tokens, K and V side by side], in any of its six orders in memory.

    Layers or blocks outermost, heads inside of blocks or outside, tokens before heads or behind: the strides say it.
    The layers may be views of one allocation, and so may the layers of several groups of a hybrid model.

    Args:
        tensors: one a layer.
        k_width: how many elements of the last axis are K; by default half of them. All: there is no V (a latent).
    """
    views = _views(tensors, 4, "blocks, heads, tokens, K and V")
    return cache_of([_split(view.order(0, 2, 1, 3), k_width) for view in views])


def kv_first(tensors: Sequence[Tensor]) -> CacheLayout:
    """[2, blocks, tokens, heads, elements]: K and V outermost, as in vLLM's FlashAttention up to 0.29."""
    views = _views(tensors, 5, "2, blocks, tokens, heads, elements")
    return cache_of([_both(view, 0, layer) for layer, view in enumerate(views)])


def kv_second(tensors: Sequence[Tensor]) -> CacheLayout:
    """[blocks, 2, tokens, heads, elements]: K and V inside of each block, as in vLLM's FlashInfer up to 0.29."""
    views = _views(tensors, 5, "blocks, 2, tokens, heads, elements")
    return cache_of([_both(view, 1, layer) for layer, view in enumerate(views)])


def token_slots(tensor: Tensor) -> CacheLayout:
    """[layers, tokens, 2 x heads, elements]: a slot a token, the heads of K before those of V, as in LightLLM.

    Blocks are single tokens then, and block tables are tables of slots.
    """
    (view,) = _views([tensor], 4, "layers, tokens, 2 x heads, elements")
    if view.shape[2] % 2:
        raise LayoutError(f"an odd number of heads, {view.shape[2]}, where there are those of K and V")
    heads = view.shape[2] // 2
    rows = [view.at(0, layer).grown(1) for layer in range(view.shape[0])]
    return cache_of([[("k", row.part(2, 0, heads)), ("v", row.part(2, heads, heads))] for row in rows])


def separate_slots(keys: Sequence[Tensor], values: Sequence[Tensor]) -> CacheLayout:
    """[tokens, heads, elements] for K and again for V, as in SGLang: a slot a token."""
    pairs = _pairs(keys, values, 3, "tokens, heads, elements")
    return cache_of([[("k", one.grown(1)), ("v", other.grown(1))] for one, other in pairs])


def separate_blocks(keys: Sequence[Tensor], values: Sequence[Tensor]) -> CacheLayout:
    """[blocks, tokens, heads, elements] for K and again for V, which may be of other widths."""
    pairs = _pairs(keys, values, 4, "blocks, tokens, heads, elements")
    return cache_of([[("k", one), ("v", other)] for one, other in pairs])


def latents(tensors: Sequence[Tensor]) -> CacheLayout:
    """MLA: [blocks, tokens, elements], or [tokens, 1, elements] where a token has a slot: one head, no V."""
    views = _views(tensors, 3, "blocks, tokens, elements")
    return cache_of([[("latent", view.grown(2))] for view in views])


def scales(keys: Sequence[Tensor], values: Sequence[Tensor]) -> CacheLayout:
    """[blocks, tokens, heads] for K and for V: one scale a head and token. To be joined with the cache they scale."""
    pairs = _pairs(keys, values, 3, "blocks, tokens, heads")
    return cache_of([[("k scale", one.grown(3)), ("v scale", other.grown(3))] for one, other in pairs])


def states(layers: Sequence[Sequence[Tensor]]) -> CacheLayout:
    """Recurrent states: several tensors a layer, each [blocks, ...], opaque bytes. A block and a page are one token.

    To ranks these are heads: give PageOrder.of_model as many as there are ranks, and each has its own.
    """
    return cache_of(
        [
            [
                (f"state {at}", _opaque(view_of(tensor), f"layer {layer}, state {at}"))
                for at, tensor in enumerate(tensors)
            ]
            for layer, tensors in enumerate(layers)
        ]
    )


def _opaque(view: View, name: str) -> View:
    """One row a block. Raises LayoutError if a block's bytes do not lie side by side."""
    if not view.shape:
        raise LayoutError(f"{name}: a tensor without axes, where [blocks, ...] is wanted")
    wanted = view.itemsize
    for axis in range(len(view.shape) - 1, 0, -1):
        count, stride = view.shape[axis], view.strides[axis]
        if count > 1 and stride != wanted:
            raise LayoutError(f"{name}: a block has to be contiguous, but axis {axis} has a stride of {stride} bytes")
        wanted *= count
    size = (view.shape[0], 1, 1, prod(view.shape[1:]))
    return View(
        view.address, size, (view.strides[0], 0, 0, view.itemsize), view.itemsize, view.dtype, view.device, view.owner
    )


def _views(tensors: Sequence[Tensor], axes: int, names: str) -> list[View]:
    views = [view_of(tensor) for tensor in tensors]
    for layer, view in enumerate(views):
        if len(view.shape) != axes:
            raise LayoutError(f"layer {layer}: a tensor of shape {list(view.shape)}, where [{names}] is wanted")
    return views


def _pairs(keys: Sequence[Tensor], values: Sequence[Tensor], axes: int, names: str) -> list[tuple[View, View]]:
    if len(keys) != len(values):
        raise LayoutError(f"{len(keys)} layers of K and {len(values)} of V")
    return list(zip(_views(keys, axes, names), _views(values, axes, names), strict=True))


def _both(view: View, axis: int, layer: int) -> list[tuple[str, View]]:
    if view.shape[axis] != 2:
        raise LayoutError(f"layer {layer}: axis {axis} of shape {list(view.shape)} has to be K and V, 2")
    return [("k", view.at(axis, 0)), ("v", view.at(axis, 1))]


def _split(rows: View, k_width: int | None) -> list[tuple[str, View]]:
    width = rows.shape[3]
    if k_width is None and width % 2:
        raise LayoutError(f"{width} elements can not be halved between K and V: say how many are K's")
    k = width // 2 if k_width is None else k_width
    if not 0 < k <= width:
        raise LayoutError(f"K has {k} of {width} elements")
    return [("k", rows.part(3, 0, k)), ("v", rows.part(3, k, width - k))] if k < width else [("latent", rows)]
