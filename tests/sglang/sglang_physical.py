"""The physical buffers of SGLang's pools, and the bytes that prompts have in them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import torch

from sglang_model import AnyPrompt

Tensors = Iterator[tuple[str, list[torch.Tensor], str]]
"""The name of each kind of buffer, the tensor of each layer, and their form."""

_HYBRIDS: Final = ("SWAKVPool", "HybridLinearKVPool", "QSATokenToKVPool")
_DIVIDED: Final = ("heads", "flat scales", "interleaved", "hnd")
_WINDOWS: Final = "windows"


class Buffer(msgspec.Struct, frozen=True, eq=False):
    """One physical buffer.

    Attributes:
        name: A name that is unique in the engine.
        raw: All bytes of its memory.
        rows: Its bytes as [pages, tokens, heads, bytes].
        divided: Whether the ranks divide the heads.
        windowed: Whether the pages are those of the sliding window.
    """

    name: str
    raw: torch.Tensor
    rows: torch.Tensor
    divided: bool
    windowed: bool


def buffers_of(pool: Any, page: int, name: str = "") -> Iterator[Buffer]:
    """Yields all physical buffers of a pool that have state of cached pages."""
    if type(pool).__name__ in _HYBRIDS:
        yield from buffers_of(pool.full_kv_pool, page, f"{name}full ")
    if type(pool).__name__ == "SWAKVPool":
        for one in buffers_of(pool.swa_kv_pool, page, f"{name}window "):
            yield msgspec.structs.replace(one, windowed=True)
    for kind, tensors, form in _tensors(pool):
        for layer, tensor in enumerate(tensors):
            if not len(tensor):
                continue  # another rank has this layer
            raw = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
            rows = _rows(tensor, form, page, pool)
            yield Buffer(f"{name}{kind} {layer}", raw, rows, form in _DIVIDED, form == _WINDOWS)


def content(number: AnyPrompt, buffer: Buffer, at: int, heads: int) -> torch.Tensor:
    """Returns the bytes of page `at` of a prompt in a buffer, [tokens, heads of the model, bytes]."""
    generator = torch.Generator().manual_seed(random.Random(f"{number} {buffer.name} {at}").randrange(1 << 60))
    shape = (buffer.rows.shape[1], heads if buffer.divided else 1, buffer.rows.shape[3])
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def _tensors(pool: Any) -> Tensors:
    match type(pool).__name__:
        case "DeepSeekV4TokenToKVPool":
            yield from _deepseek_v4(pool)
        case "DSATokenToKVPool" | "LayerSplitDSATokenToKVPool":
            yield "latents", pool.kv_buffer, "shared"
            yield "index", pool.index_k_with_scale_buffer, "rows"
        case "MLATokenToKVPool" | "MLATokenToKVPoolFP4":
            yield "latents", pool.kv_buffer, "shared"
            yield "scales", pool.kv_scale_buffer or [], "shared"
        case "MiniMaxSparseKVPool" | "MiniMaxM3Nvfp4KVPool":
            yield from _minimax(pool)
        case "QSATokenToKVPool":
            yield "index k", pool.qsa_compressed_k_buffer_pool, "shared"
        case "MHATokenToKVPool" | "MHATokenToKVPoolFP4" | "MHATokenToKVPoolMXFP8":
            yield from _heads(pool)


def _heads(pool: Any) -> Tensors:
    interleaved = getattr(pool, "mxfp8_sf_interleaved", False)
    flat = "flat scales" if type(pool).__name__ == "MHATokenToKVPoolFP4" else "heads"
    for kind in ("k", "v"):
        yield kind, getattr(pool, f"{kind}_buffer"), "hnd" if pool.use_hnd else "heads"
        yield f"{kind} scales", getattr(pool, f"{kind}_scale_buffer") or [], "interleaved" if interleaved else flat


def _minimax(pool: Any) -> Tensors:
    if type(pool).__name__ == "MiniMaxSparseKVPool":
        yield from _heads(pool.main_pool)
        yield "index k", [*pool.index_k_pool.k_buffer, *pool.index_kv_pool.k_buffer], "shared"
        yield "index v", pool.index_kv_pool.v_buffer, "shared"
        return
    for kind in ("k_buffer", "k_scale_buffer", "v_buffer", "v_scale_buffer"):
        yield kind, getattr(pool.main_pool, kind), "hnd"
    for kind in ("k_buffer", "k_scale_buffer"):
        yield f"index {kind}", getattr(pool.index_k_pool, kind), "rows"


def _deepseek_v4(pool: Any) -> Tensors:
    yield _WINDOWS, pool.swa_kv_pool.kv_buffer, _WINDOWS
    for ratio, part in pool.kv_pools.items():
        yield f"c{ratio}", part.kv_buffer, "rows"
    for ratio, part in pool.index_pools.items():
        yield (
            f"index of c{ratio}",
            _joined(part.index_k_with_scale_buffer, pool.page_size // ratio // part.page_size),
            "rows",
        )
    for name in ("compress_state_pools", "indexer_compress_state_pools"):
        states = [one for one in getattr(pool, name) if one is not None and one.ratio == 4]
        rings = [one.kv_score_buffer.kv_score for one in states]
        yield name, _joined(rings, states[0].ring_size if states else 1), _WINDOWS


def _joined(tensors: list[torch.Tensor], count: int) -> list[torch.Tensor]:
    """Returns tensors of which `count` rows are one."""
    return [one[: len(one) // count * count].view(len(one) // count, -1) for one in tensors]


def _rows(tensor: torch.Tensor, form: str, page: int, pool: Any) -> torch.Tensor:
    """Returns a buffer as [pages, tokens, heads, bytes]."""
    octets = tensor.view(torch.uint8)
    match form:
        case "rows" | "windows":
            return octets.flatten(1)[:, None, None]
        case "hnd":
            return octets.transpose(1, 2)
        case "interleaved":
            return octets.flatten(2, 3).transpose(1, 2)
    slots = page // getattr(pool, "qsa_compress_ratio", 1)
    whole = octets[: len(octets) // slots * slots].unflatten(0, (-1, slots))
    if form == "flat scales":
        return whole.unflatten(2, (pool.head_num, -1))
    return whole if form == "heads" else whole.flatten(2)[:, :, None]
