"""Describes SGLang's host pools, which its HiCache keeps, as the caches of layer groups."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from pagetier.client.engines.sglang.pools.device_pools import FULL, STATE, WINDOW, DevicePool, variants_of
from pagetier.client.engines.sglang.pools.token_planes import Layers
from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.groups import FullAttention, Group, Recurrent, SlidingWindow
from pagetier.client.registration import CacheGroup
from pagetier.kernels.layout.cache_layout import cache_of
from pagetier.kernels.layout.tensors import view_of

_INDEX: Final = "indexer"

# One layer of a buffer as [pages, tokens, heads, elements], from the shape that each layout has.
_LAYERS: Final[Mapping[str, Callable[[Any, int, int], Any]]] = {
    "layer_first": lambda buffer, layer, page: buffer[layer].unflatten(0, (-1, page)),
    "page_first": lambda buffer, layer, page: buffer[:, layer].unflatten(0, (-1, page)),
    "page_first_direct": lambda buffer, layer, page: buffer[:, layer],
    "page_head": lambda buffer, layer, page: buffer[:, :, :, layer].transpose(1, 2),
}
_ROWS: Final[Mapping[str, Callable[[Any, int], Any]]] = {
    "layer_first": lambda buffer, layer: buffer[layer],
    "page_first": lambda buffer, layer: buffer[:, layer],
    "page_first_direct": lambda buffer, layer: buffer[:, layer, 0],
}
_STATE_LAYOUTS: Final = ("page_first", "page_first_direct")
_UNKNOWN: Final = "the host pools {} of HiCache are not known: use the linker, without --pp-size"
_UNCOMPRESSED: Final = (
    "a pipeline stage has no compressed layers: set SGLANG_PP_LAYER_PARTITION so that each stage has some"
)
_SPARSE: Final = ("MLATokenToKVPoolHost", "DSAIndexerPoolHost", "DSATokenToKVPool")
_INDEX_LAYOUTS: Final = ("layer_first", *_STATE_LAYOUTS)

RIDES: Final[Mapping[str, str]] = {
    _INDEX: FULL,
    "deepseek_v4_c4": FULL,
    "deepseek_v4_c4_indexer": FULL,
    "deepseek_v4_c128": FULL,
    "deepseek_v4_c4_state": WINDOW,
    "deepseek_v4_c4_indexer_state": WINDOW,
}
"""The host pools that have the indices of another one: what they have is a part of its pages."""


def host_pools(pools: Mapping[str, Any], page: int, heads: Callable[[str], int]) -> tuple[DevicePool, ...]:
    """Returns the host pools of a model in the same form as its device pools, the one with full attention first.

    Args:
        pools: SGLang's host pools by the name of its PoolName.
        page: The number of tokens in a page.
        heads: Returns the KV heads of the whole model in the layers of a pool with keys and values of heads.

    Returns:
        The pools.

    Raises:
        UnsupportedError: A pool or its layout is not known, or by `heads`.
    """
    if type(pools[FULL]).__name__ == "LogicalHostPool":
        return _compressed_pools(pools, page)
    if _is_sparse(pools):
        return (_sparse(pools[FULL], pools[_INDEX]),)
    if unknown := sorted(pools.keys() - {FULL, WINDOW, STATE}):
        raise UnsupportedError(_UNKNOWN.format(", ".join(unknown)))
    names = sorted(pools, key=(FULL, WINDOW, STATE).index)
    return tuple(
        _states(pools[name], page) if name == STATE else _attention(name, pools[name], heads) for name in names
    )


def layers_of(pool: Any, buffer: Any) -> list[Any]:
    """Returns each layer of a buffer as [pages, tokens, heads, elements]."""
    return [_LAYERS[pool.layout](buffer, layer, pool.page_size) for layer in range(pool.layer_num)]


def _compressed_pools(pools: Mapping[str, Any], page: int) -> tuple[DevicePool, ...]:
    """Returns the pools of DeepSeek V4: compressed tokens and their index keys, then windows and states.

    The pool of full attention has no bytes. It gives the pages their indices.

    Raises:
        UnsupportedError: A pool is not known, or there are no compressed layers, so that no page has bytes.
    """
    others = {name: pool for name, pool in pools.items() if name != FULL}
    known = (name in (WINDOW, *RIDES) and _has_known_rows(pool, page) for name, pool in others.items())
    if not all(known) or WINDOW not in others:
        raise UnsupportedError(_UNKNOWN.format(", ".join(sorted(others))))
    if FULL not in map(RIDES.get, others):
        raise UnsupportedError(_UNCOMPRESSED)
    kinds = {FULL: FullAttention(page), WINDOW: SlidingWindow(page, page)}
    return tuple(_joined(name, kind, others) for name, kind in kinds.items())


def _has_known_rows(pool: Any, page: int) -> bool:
    """Returns whether a pool of DeepSeek V4 has one row a page, of a format that the width of the row tells.

    These are the rows "v4" and those of the backend trtllm, and index keys in FP8 and FP4. Of the rows of V4.1 and of a
    unified pool, which SGLang moves in whole pages only, a host pool does not say which of several formats they have.
    """
    kind = type(pool).__name__
    known = kind == "DeepSeekV4StateHostPool" or (kind == "DeepSeekV4PagedHostPool" and not pool.page_aligned_only)
    return known and pool.page_size == page and pool.layout in _ROWS


def _joined(name: str, kind: Group, pools: Mapping[str, Any]) -> DevicePool:
    """Returns the rows of a pool and of those that ride on it."""
    own = sorted(other for other in pools if RIDES.get(other, other) == name)
    rows = [[_ROWS[pools[at].layout](pools[at].kv_buffer, layer)] for at in own for layer in range(pools[at].layer_num)]
    group = CacheGroup(kv_caches=rows, layout="rows", kind=kind)
    counts = [f"{at} {pools[at].layer_num}" for at in own]
    variants = (*counts, *variants_of(getattr(pools[at], "state_pools", []) for at in own))
    return DevicePool(name, pools[own[0]], group, _own(len(rows)), kind.page_tokens, variants)


def _is_sparse(pools: Mapping[str, Any]) -> bool:
    """Returns whether the pools are those of sparse attention (DSA) alone, all layers of which this rank has."""
    latents, index = pools[FULL], pools.get(_INDEX)
    kinds = (type(latents).__name__, type(index).__name__, type(getattr(index, "device_pool", None)).__name__)
    return pools.keys() == {FULL, _INDEX} and kinds == _SPARSE and pools[_INDEX].layer_num <= latents.layer_num


def _sparse(latents: Any, index: Any) -> DevicePool:
    """Returns the latents of sparse attention, with the index keys of a page: as many bytes for each of its tokens.

    Layers without index keys of their own have none on the host, so that a page has all keys in its first layers.
    """
    require_layout(latents.layout, _INDEX_LAYOUTS)
    planes = _latents(latents)
    for layer, keys in enumerate(_index_keys(index)):
        pages = planes[layer][0][1].shape[0]  # the host has room for more index keys
        planes[layer].append(("index k", view_of(keys[:pages].unflatten(1, (latents.page_size, 1, -1)))))
    group = CacheGroup(kv_caches=cache_of(planes), kind=FullAttention(latents.page_size), num_kv_heads={})
    # The format of the latents is that of the index keys beside them.
    variants = variants_of([index.device_pool])
    return DevicePool(FULL, latents, group, _own(latents.layer_num), latents.page_size, variants)


def _index_keys(pool: Any) -> list[Any]:
    """Returns the index keys of each layer that has some, a row for each page."""
    layout = "layer_first" if pool.layout == "layer_first" else "page_first_direct"
    return [_ROWS[layout](pool.index_k_with_scale_buffer, layer) for layer in range(pool.layer_num)]


def _latents(pool: Any) -> Layers:
    return [[("latent", view_of(layer))] for layer in layers_of(pool, pool.kv_buffer)]


def _attention(name: str, pool: Any, heads: Callable[[str], int]) -> DevicePool:
    require_layout(pool.layout)
    # How long the window is does not matter here: SGLang passes the pages of each window.
    kind = FullAttention(pool.page_size) if name == FULL else SlidingWindow(pool.page_size, pool.page_size)
    match type(pool).__name__:
        case "MHATokenToKVPoolHost":
            tensors = [layers_of(pool, buffer) for buffer in (pool.k_buffer, pool.v_buffer)]
            group = CacheGroup(kv_caches=tensors, layout="separate_blocks", kind=kind, num_kv_heads=heads(name))
        case "MLATokenToKVPoolHost":
            group = CacheGroup(kv_caches=cache_of(_latents(pool)), kind=kind, num_kv_heads={})
        case other:
            raise UnsupportedError(f"the host pool {other} is not known: use the linker for models with such a cache")
    return DevicePool(name, pool, group, _own(pool.layer_num), pool.page_size)


def _states(pool: Any, page: int) -> DevicePool:
    """Returns the recurrent states, of which each slot is one snapshot."""
    require_layout(pool.layout, _STATE_LAYOUTS)
    if pool.slot_state_buffers or pool.mtp_draft_buffer_infos:
        raise UnsupportedError("side states of recurrent layers and states of draft models are not supported yet")
    states = [state for state in (pool.temporal_buffer, *pool.conv_buffer) if state.numel()]
    tensors = [[state[:, layer, 0] for state in states] for layer in range(pool.num_mamba_layers)]
    group = CacheGroup(kv_caches=tensors, layout="states", kind=Recurrent(page))
    return DevicePool(STATE, pool, group, _own(pool.num_mamba_layers), 1)


def require_layout(layout: str, known: Collection[str] = _LAYERS.keys()) -> None:
    """Raises UnsupportedError for a layout that is not known, by default of any host pool."""
    if layout not in known:
        raise UnsupportedError(
            f"the layout {layout} is not known: set --hicache-mem-layout to one of {', '.join(known)}"
        )


def _own(layers: int) -> dict[int, int]:
    return {layer: layer for layer in range(layers)}
