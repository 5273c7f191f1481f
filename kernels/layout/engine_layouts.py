"""The cache layouts of known engines, one constructor each. For any other layout use cache_layout.cache_of().

`tensors` are in the order of the model's layers. Shapes are torch's, whatever the strides are: an engine that keeps
heads before tokens in memory usually shows them in the same shape. All constructors raise LayoutError for tensors of
another shape, on several devices or that the copies cannot address, and TypeError for arguments that are no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from pagetier.kernels.layout.cache_layout import CacheLayout, LayoutError, cache_of
from pagetier.kernels.layout.tensors import Tensor, View, view_of


def vllm(tensors: Sequence[Tensor], k_width: int | None = None) -> CacheLayout:
    """Describes vLLM's layout since 0.30: [blocks, heads, tokens, K and V joined], in any of its six memory orders.

    The strides tell whether layers or blocks are outermost, and where the heads and tokens are. The layers may be views
    of one allocation, and so may the layers of several groups of a hybrid model.

    Args:
        tensors: One tensor a layer.
        k_width: The number of elements of the last axis that belong to K; by default half of them. If all of them do,
            there is no V (a latent).

    Returns:
        The layout of the cache.
    """
    views = _views(tensors, 4, "blocks, heads, tokens, K and V")
    return cache_of([_split(view.permuted(0, 2, 1, 3), k_width) for view in views])


def vllm_of_any_version(tensors: Sequence[Tensor]) -> CacheLayout:
    """Recognises vLLM's layout by the number of axes and the place of the 2: since 0.30, up to 0.29, or MLA latents.

    The rows of the layout since 0.30 are copied as one plane, so that the width of K need not be known. Layers may have
    rows of several widths.

    Args:
        tensors: One tensor a layer.

    Returns:
        The layout of the cache.

    Raises:
        LayoutError: There are no tensors, or their shape is none of these.
    """
    match tuple(tensors[0].shape) if tensors else ():
        case (_, _, _, _):
            views = _views(tensors, 4, "blocks, heads, tokens, K and V")
            return cache_of([[("latent", view.permuted(0, 2, 1, 3))] for view in views])
        case (2, _, _, _, _):
            return kv_first(tensors)
        case (_, 2, _, _, _):
            return kv_second(tensors)
        case (_, _, _):
            return latents(tensors)
        case shape:
            raise LayoutError(f"vLLM has no cache tensors of shape {list(shape)}")


def kv_first(tensors: Sequence[Tensor]) -> CacheLayout:
    """Describes [2, blocks, tokens, heads, elements]: K and V outermost, as in vLLM's FlashAttention up to 0.29."""
    views = _views(tensors, 5, "2, blocks, tokens, heads, elements")
    return cache_of([_both(view, 0, layer) for layer, view in enumerate(views)])


def kv_second(tensors: Sequence[Tensor]) -> CacheLayout:
    """Describes [blocks, 2, tokens, heads, elements]: K and V inside each block, as in vLLM's FlashInfer up to 0.29."""
    views = _views(tensors, 5, "blocks, 2, tokens, heads, elements")
    return cache_of([_both(view, 1, layer) for layer, view in enumerate(views)])


def token_slots(tensor: Tensor) -> CacheLayout:
    """Returns the layout [layers, tokens, 2 x heads, elements]: one slot a token, K's heads before V's, as in LightLLM.

    Blocks are then single tokens, and block tables are tables of slots.

    Raises:
        LayoutError: The number of heads is odd.
    """
    (view,) = _views([tensor], 4, "layers, tokens, 2 x heads, elements")
    if view.shape[2] % 2:
        raise LayoutError(f"{view.shape[2]} heads: K and V have the same number of heads, so it must be even")
    heads = view.shape[2] // 2
    rows = [view.at(0, layer).grown(1) for layer in range(view.shape[0])]
    return cache_of([[("k", row.part(2, 0, heads)), ("v", row.part(2, heads, heads))] for row in rows])


def separate_slots(keys: Sequence[Tensor], values: Sequence[Tensor]) -> CacheLayout:
    """Describes [tokens, heads, elements] for K and the same for V, as in SGLang: one slot a token."""
    pairs = _pairs(keys, values, 3, "tokens, heads, elements")
    return cache_of([[("k", one.grown(1)), ("v", other.grown(1))] for one, other in pairs])


def separate_blocks(keys: Sequence[Tensor], values: Sequence[Tensor]) -> CacheLayout:
    """Describes [blocks, tokens, heads, elements] for K and for V, which may have different widths."""
    pairs = _pairs(keys, values, 4, "blocks, tokens, heads, elements")
    return cache_of([[("k", one), ("v", other)] for one, other in pairs])


def latents(tensors: Sequence[Tensor]) -> CacheLayout:
    """Describes MLA latents: [blocks, tokens, elements], or [tokens, 1, elements] with token slots; one head, no V."""
    views = _views(tensors, 3, "blocks, tokens, elements")
    return cache_of([[("latent", view.grown(2))] for view in views])


def scales(keys: Sequence[Tensor], values: Sequence[Tensor]) -> CacheLayout:
    """Returns the layout [blocks, tokens, heads] for K and for V: one scale a head and token.

    Join it with the cache that it scales.
    """
    pairs = _pairs(keys, values, 3, "blocks, tokens, heads")
    return cache_of([[("k scale", one.grown(3)), ("v scale", other.grown(3))] for one, other in pairs])


def states(layers: Sequence[Sequence[Tensor]]) -> CacheLayout:
    """Returns the layout of recurrent states: several tensors a layer, each [blocks, ...], copied as opaque bytes.

    A block and a page are one token. For ranks these are heads: give PageLayout.of_model as many heads as there are
    ranks, so that each rank has its own.
    """
    return cache_of(_blocks(layers, "state"))


def rows(layers: Sequence[Sequence[Tensor]]) -> CacheLayout:
    """Returns the layout of opaque rows: several buffers a layer, each [blocks, ...] with blocks of its own size.

    A block and a page are one. What a block of a buffer holds does not matter: the states of any number of tokens, an
    index, scales, padding. View a buffer of tokens as [blocks, tokens, ...] first. Blocks after those of the smallest
    buffer are not part of the cache.

    Give PagedCache the page PageLayout.of_rows() if all ranks have the same rows.

    Raises:
        LayoutError: The bytes of a block are not contiguous: pass several buffers then, each with one piece of a block.
    """
    given = _blocks(layers, "row")
    count = min((view.shape[0] for kinds in given for _, view in kinds), default=0)
    return cache_of([[(kind, view.part(0, 0, count)) for kind, view in kinds] for kinds in given])


def _blocks(layers: Sequence[Sequence[Tensor]], kind: str) -> list[list[tuple[str, View]]]:
    """Returns one row a block for each tensor of each layer."""
    return [
        [(f"{kind} {at}", _opaque(view_of(tensor), f"layer {layer}, {kind} {at}")) for at, tensor in enumerate(tensors)]
        for layer, tensors in enumerate(layers)
    ]


def _opaque(view: View, name: str) -> View:
    """Returns a view with one row a block. Raises LayoutError if a block's bytes are not contiguous."""
    if not view.shape:
        raise LayoutError(f"{name}: expected a tensor of shape [blocks, ...], got one without axes")
    wanted = view.itemsize
    for axis in range(len(view.shape) - 1, 0, -1):
        count, stride = view.shape[axis], view.strides[axis]
        if count > 1 and stride != wanted:
            raise LayoutError(f"{name}: a block must be contiguous, but axis {axis} has a stride of {stride} bytes")
        wanted *= count
    size = (view.shape[0], 1, 1, prod(view.shape[1:]))
    return View(
        view.address, size, (view.strides[0], 0, 0, view.itemsize), view.itemsize, view.dtype, view.device, view.owner
    )


def _views(tensors: Sequence[Tensor], axes: int, names: str) -> list[View]:
    views = [view_of(tensor) for tensor in tensors]
    for layer, view in enumerate(views):
        if len(view.shape) != axes:
            raise LayoutError(f"layer {layer}: expected a tensor of shape [{names}], got {list(view.shape)}")
    return views


def _pairs(keys: Sequence[Tensor], values: Sequence[Tensor], axes: int, names: str) -> list[tuple[View, View]]:
    if len(keys) != len(values):
        raise LayoutError(f"K has {len(keys)} layers and V has {len(values)}")
    return list(zip(_views(keys, axes, names), _views(values, axes, names), strict=True))


def _both(view: View, axis: int, layer: int) -> list[tuple[str, View]]:
    if view.shape[axis] != 2:
        raise LayoutError(f"layer {layer}: axis {axis} of shape {list(view.shape)} must be 2, for K and V")
    return [("k", view.at(axis, 0)), ("v", view.at(axis, 1))]


def _split(rows: View, k_width: int | None) -> list[tuple[str, View]]:
    width = rows.shape[3]
    if k_width is None and width % 2:
        raise LayoutError(f"{width} elements cannot be halved between K and V: pass k_width")
    k = width // 2 if k_width is None else k_width
    if not 0 < k <= width:
        raise LayoutError(f"k_width = {k} is not between 1 and the {width} elements of a row")
    return [("k", rows.part(3, 0, k)), ("v", rows.part(3, k, width - k))] if k < width else [("latent", rows)]
