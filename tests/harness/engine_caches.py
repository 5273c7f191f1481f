"""Torch caches as engines allocate them, with guard zones, and each of their planes as a plain tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import msgspec
import torch

from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.cache_layout import CacheLayout, joined

GUARD = 64
VLLM_ORDERS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")


class Shape(msgspec.Struct, frozen=True):
    """The shape of a cache; `width` in elements, `shift` in elements by which its memory is misaligned."""

    layers: int
    blocks: int
    tokens: int
    heads: int
    width: int
    dtype: Any
    shift: int = 0
    device: str = "cpu"


class EngineCache(msgspec.Struct, frozen=True, eq=False):
    """A cache.

    `memory` is all of its bytes with guard zones; `planes` is [layer][plane], each [blocks, tokens, heads, elements].
    """

    memory: list[Any]
    planes: list[list[Any]]
    layout: CacheLayout

    def copies(self) -> list[Any]:
        """Returns copies of the memory."""
        return [memory.clone() for memory in self.memory]

    def restore(self, copies: list[Any]) -> None:
        """Restores the memory from copies."""
        for memory, copy in zip(self.memory, copies, strict=True):
            memory.copy_(copy)


Build = Callable[[Shape], EngineCache]


class _Memory:
    """Allocates tensors with random bytes, each between guard zones of its own."""

    def __init__(self, device: str, shift: int = 0) -> None:
        self.all: list[Any] = []
        self._device, self._shift = device, shift

    def tensor(self, shape: Sequence[int], dtype: Any) -> Any:
        begin = GUARD + self._shift * dtype.itemsize
        nbytes = prod(shape) * dtype.itemsize
        self.all.append(torch.randint(0, 256, (begin + nbytes + GUARD,), dtype=torch.uint8, device=self._device))
        return self.all[-1][begin : begin + nbytes].view(dtype).view(*shape)


def _vllm(order: str, shape: Shape, kinds: int = 2) -> EngineCache:
    memory = _Memory(shape.device, shape.shift)
    sizes = {"L": shape.layers, "B": shape.blocks, "H": shape.heads, "N": shape.tokens, "C": kinds * shape.width}
    whole = memory.tensor([sizes[axis] for axis in order], shape.dtype).permute([order.index(a) for a in "LBHNC"])
    tensors = list(whole)
    rows = [tensor.transpose(1, 2) for tensor in tensors]
    planes = [[row[..., kind * shape.width : (kind + 1) * shape.width] for kind in range(kinds)] for row in rows]
    return EngineCache(memory.all, planes, engine_layouts.vllm(tensors, shape.width if kinds == 1 else None))


def _in_memory(memory: _Memory, shape: Sequence[int], dtype: Any, swapped: tuple[int, int] | None) -> Any:
    """Returns a tensor of this shape, with two of its axes swapped in memory."""
    if swapped is None:
        return memory.tensor(shape, dtype)
    stored = list(shape)
    one, other = swapped
    stored[one], stored[other] = stored[other], stored[one]
    return memory.tensor(stored, dtype).transpose(one, other)


def _kv(make: Callable[[Sequence[Any]], CacheLayout], axis: int, swapped: bool, shape: Shape) -> EngineCache:
    memory = _Memory(shape.device, shape.shift)
    sizes = [shape.blocks, shape.tokens, shape.heads, shape.width]
    sizes.insert(axis, 2)
    swap = (2, 3) if swapped else None
    tensors = [_in_memory(memory, sizes, shape.dtype, swap) for _ in range(shape.layers)]
    return EngineCache(memory.all, [[t.select(axis, 0), t.select(axis, 1)] for t in tensors], make(tensors))


def _token_slots(shape: Shape) -> EngineCache:
    memory = _Memory(shape.device, shape.shift)
    tensor = memory.tensor((shape.layers, shape.blocks, 2 * shape.heads, shape.width), shape.dtype)
    k, v = tensor[:, :, : shape.heads], tensor[:, :, shape.heads :]
    planes = [[k[layer].unsqueeze(1), v[layer].unsqueeze(1)] for layer in range(shape.layers)]
    return EngineCache(memory.all, planes, engine_layouts.token_slots(tensor))


def _separate_slots(shape: Shape) -> EngineCache:
    memory = _Memory(shape.device, shape.shift)
    sizes = (shape.blocks, shape.heads, shape.width)
    keys, values = ([memory.tensor(sizes, shape.dtype) for _ in range(shape.layers)] for _ in range(2))
    planes = [[k.unsqueeze(1), v.unsqueeze(1)] for k, v in zip(keys, values, strict=True)]
    return EngineCache(memory.all, planes, engine_layouts.separate_slots(keys, values))


def _separate_blocks(shape: Shape) -> EngineCache:
    """Returns a cache whose V is wider than its K."""
    memory = _Memory(shape.device, shape.shift)
    sizes = (shape.blocks, shape.tokens, shape.heads)
    keys, values = (
        [memory.tensor((*sizes, shape.width + more), shape.dtype) for _ in range(shape.layers)] for more in (0, 2)
    )
    planes = [[k, v] for k, v in zip(keys, values, strict=True)]
    return EngineCache(memory.all, planes, engine_layouts.separate_blocks(keys, values))


def _latents(shape: Shape) -> EngineCache:
    memory = _Memory(shape.device, shape.shift)
    tensors = [memory.tensor((shape.blocks, shape.tokens, 576), shape.dtype) for _ in range(shape.layers)]
    return EngineCache(memory.all, [[tensor.unsqueeze(2)] for tensor in tensors], engine_layouts.latents(tensors))


def _latent_slots(shape: Shape) -> EngineCache:
    return _latents(msgspec.structs.replace(shape, tokens=1))


def _scaled(cache: Build, scale: Any, shape: Shape) -> EngineCache:
    """Returns an int8 cache with a scale for each head and token."""
    its = cache(msgspec.structs.replace(shape, dtype=torch.int8))
    memory = _Memory(shape.device, shape.shift)
    sizes = (shape.blocks, its.layout.block_tokens, shape.heads)
    keys, values = ([memory.tensor(sizes, scale) for _ in range(shape.layers)] for _ in range(2))
    planes = [[*ours, k.unsqueeze(3), v.unsqueeze(3)] for ours, k, v in zip(its.planes, keys, values, strict=True)]
    return EngineCache(its.memory + memory.all, planes, joined(its.layout, engine_layouts.scales(keys, values)))


def _opaque(states: list[list[Any]], memory: _Memory) -> EngineCache:
    planes = [[state.reshape(len(state), 1, 1, -1) for state in layer] for layer in states]
    return EngineCache(memory.all, planes, engine_layouts.states(states))


def _states(shape: Shape) -> EngineCache:
    memory = _Memory(shape.device, shape.shift)
    kinds = [((shape.heads, 3), torch.float32), ((5,), torch.bfloat16), ((), torch.int8), ((2, 1, 3), torch.int16)]
    return _opaque(
        [[memory.tensor((shape.blocks, *sizes), dtype) for sizes, dtype in kinds] for _ in range(shape.layers)], memory
    )


def _states_of_a_block(shape: Shape) -> EngineCache:
    """Returns states of all layers side by side in each block, as in a hybrid model, with unused bytes between them."""
    memory = _Memory(shape.device)
    kinds = [((shape.heads, 4), torch.float32), ((6,), torch.float16)]
    widths = [prod(sizes) * dtype.itemsize for sizes, dtype in kinds] * shape.layers
    begins = [0]
    for width in widths:
        begins.append(begins[-1] + width)
    raw = memory.tensor((shape.blocks, begins[-1] + 12), torch.uint8)
    parts = [raw[:, begin:end] for begin, end in pairwise(begins)]
    states = [
        [
            part.view(dtype).unflatten(1, sizes)
            for part, (sizes, dtype) in zip(parts[layer * len(kinds) :], kinds, strict=False)
        ]
        for layer in range(shape.layers)
    ]
    planes = [
        [parts[layer * len(kinds) + at][:, None, None] for at in range(len(kinds))] for layer in range(shape.layers)
    ]
    return EngineCache(memory.all, planes, engine_layouts.states(states))


def _rows(shape: Shape) -> EngineCache:
    """Returns opaque rows: buffers with blocks of several sizes, some of which have more blocks than the others."""
    memory = _Memory(shape.device, shape.shift)
    kinds = [((shape.heads, 4, 3), torch.bfloat16, 0), ((132,), torch.uint8, 2), ((2, 5), torch.float32, 1)]
    rows = [
        [memory.tensor((shape.blocks + more, *sizes), dtype) for sizes, dtype, more in kinds[layer % 2 :]]
        for layer in range(shape.layers)
    ]
    planes = [[row[: shape.blocks].reshape(shape.blocks, 1, 1, -1) for row in layer] for layer in rows]
    return EngineCache(memory.all, planes, engine_layouts.rows(rows))


ENGINES: dict[str, Build] = {
    **{f"vllm {order}": partial(_vllm, order) for order in VLLM_ORDERS},
    "vllm LBNHC, a latent": partial(_vllm, "LBNHC", kinds=1),
    "kv_first": partial(_kv, engine_layouts.kv_first, 0, False),
    "kv_first, heads before tokens": partial(_kv, engine_layouts.kv_first, 0, True),
    "kv_second": partial(_kv, engine_layouts.kv_second, 1, False),
    "kv_second, heads before tokens": partial(_kv, engine_layouts.kv_second, 1, True),
    "token_slots": _token_slots,
    "separate_slots": _separate_slots,
    "separate_blocks": _separate_blocks,
    "latents": _latents,
    "latents, token slots": _latent_slots,
    "scales of separate_blocks": partial(_scaled, _separate_blocks, torch.float32),
    "scales of separate_slots": partial(_scaled, _separate_slots, torch.bfloat16),
    "scales of vllm BLHNC": partial(_scaled, partial(_vllm, "BLHNC"), torch.float16),
    "states": _states,
    "states of a block": _states_of_a_block,
    "rows": _rows,
}
SLOTS = {"token_slots", "separate_slots", "latents, token slots", "scales of separate_slots"}
STATES = {"states", "states of a block", "rows"}
"""The caches whose blocks are single tokens, and the caches of opaque blocks, whose pages are single blocks."""


def hybrid(blocks: int, other: Shape, dtype: Any) -> tuple[EngineCache, EngineCache]:
    """Returns two groups of layers in the same bytes: attention with the shape `other`, and states that fill a block.

    Each block belongs to one of them at a time. Layers are outermost, because a layer of each group shares a tensor.
    """
    memory = _Memory(other.device, other.shift)
    row = 2 * other.width
    raw = [memory.tensor((blocks, other.heads, other.tokens, row), dtype) for _ in range(other.layers)]
    kv = [[t.transpose(1, 2)[..., : other.width], t.transpose(1, 2)[..., other.width :]] for t in raw]
    states = [[tensor.flatten(1).view(torch.uint8)] for tensor in raw]
    ours = EngineCache(memory.all, kv, engine_layouts.vllm(raw))
    return ours, _opaque(states, memory)
