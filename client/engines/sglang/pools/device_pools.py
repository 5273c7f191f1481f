"""Describes SGLang's device pools as the caches of layer groups, and rejects pools whose content is not known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.groups import FullAttention, Recurrent, SlidingWindow
from pagetier.client.registration import CacheGroup

FULL: Final = "kv"
WINDOW: Final = "swa"
STATE: Final = "mamba"


class DevicePool(msgspec.Struct, frozen=True, eq=False):
    """The device memory of one layer group on this rank.

    Attributes:
        name: SGLang's PoolName: "kv", "swa" or "mamba".
        pool: SGLang's pool.
        group: The tensors, in blocks of one page, and the kind of the group.
        layers: The layer of the group for each layer of this pipeline stage that belongs to it.
        page_slots: The number of slots that one page has in `device_indices`.
    """

    name: str
    pool: Any
    group: CacheGroup
    layers: Mapping[int, int]
    page_slots: int


def device_pools(params: Any, heads: Callable[[str], int]) -> tuple[DevicePool, ...]:
    """Returns the pools of a model, the one with full attention first.

    Args:
        params: SGLang's CacheInitParams.
        heads: Returns the KV heads of the whole model in the layers of a pool.

    Returns:
        The pools.

    Raises:
        UnsupportedError: A pool is not known.
    """
    cache, page = params.token_to_kv_pool_allocator.get_kvcache(), params.page_size
    match type(cache).__name__:
        case "SWAKVPool":
            return _window_pools(cache, params, heads)
        case "HybridLinearKVPool":
            layers = _local(cache.full_attention_layer_id_mapping, cache.start_layer)
            full = _attention(FULL, cache.full_kv_pool, layers, page, heads)
            return full, _state_pool(params.req_to_token_pool, cache.start_layer, page)
        case _:
            return (_attention(FULL, cache, {layer: layer for layer in range(cache.layer_num)}, page, heads),)


def _window_pools(cache: Any, params: Any, heads: Callable[[str], int]) -> tuple[DevicePool, ...]:
    page, mapping = params.page_size, cache.layers_mapping
    full = {layer: own for layer, (own, windowed) in mapping.items() if not windowed}
    windowed = {layer: own for layer, (own, windowed) in mapping.items() if windowed}
    window = int(params.swa_retain_window)
    return (
        _attention(FULL, cache.full_kv_pool, _local(full, cache.start_layer), page, heads),
        _attention(WINDOW, cache.swa_kv_pool, _local(windowed, cache.start_layer), page, heads, window),
    )


def _attention(
    name: str, pool: Any, layers: Mapping[int, int], page: int, heads: Callable[[str], int], window: int = 0
) -> DevicePool:
    kind = SlidingWindow(page, window) if window else FullAttention(page)
    match type(pool).__name__:
        case "MHATokenToKVPool":
            _require_plain(pool)
            tensors = [_pages(pool.k_buffer, page), _pages(pool.v_buffer, page)]
            group = CacheGroup(kv_caches=tensors, layout="separate_blocks", kind=kind, num_kv_heads=heads(name))
        case "MLATokenToKVPool":
            if pool.kv_scale_buffer is not None:
                raise UnsupportedError("KV caches with scales are not supported yet")
            latents = [tensor.squeeze(1) for tensor in pool.kv_buffer]
            group = CacheGroup(kv_caches=_pages(latents, page), layout="mla", kind=kind)
        case other:
            raise UnsupportedError(f"the KV pool {other} is not known: pagetier caches MHA, GQA and MLA without extras")
    return DevicePool(name, pool, group, layers, page)


def _require_plain(pool: Any) -> None:
    """Raises UnsupportedError for a pool whose rows are not [tokens, heads, elements] without scales."""
    if getattr(pool, "kv_cache_layout", "nhd") != "nhd":
        raise UnsupportedError(f"the KV layout {pool.kv_cache_layout} is not known: unset SGLANG_USE_HND_KVCACHE")
    scales = (getattr(pool, name, None) for name in ("k_scale_buffer", "native_k_scale_buffer"))
    if any(scale is not None for scale in scales):
        raise UnsupportedError("KV caches with scales are not supported yet")


def _state_pool(requests: Any, start_layer: int, page: int) -> DevicePool:
    """Returns the recurrent states, of which each slot is one snapshot.

    Raises:
        UnsupportedError: Requests have states beside those of the layers.
    """
    extra = getattr(requests, "mamba_ckpt_pool", None) is not None
    siblings = (getattr(getattr(requests, name, None), "enabled", False) for name in ("short_conv_pool", "ngram_pool"))
    if extra or any(siblings):
        raise UnsupportedError("checkpoints in int8 and side states of recurrent layers are not supported yet")
    cache = requests.mamba_pool.mamba_cache
    states = [state for state in (cache.temporal, *cache.conv) if state.numel()]
    tensors = [[state[layer] for state in states] for layer in range(requests.mamba_pool.num_mamba_layers)]
    group = CacheGroup(kv_caches=tensors, layout="states", kind=Recurrent(page))
    return DevicePool(STATE, requests.mamba_pool, group, _local(requests.mamba_map, start_layer), 1)


def _pages(tensors: Any, page: int) -> list[Any]:
    """Returns views of [slots, ...] as [pages, slots, ...]. Slots after the last whole page are not used by SGLang."""
    return [tensor[: len(tensor) // page * page].unflatten(0, (-1, page)) for tensor in tensors]


def _local(layers: Mapping[int, int], start_layer: int) -> dict[int, int]:
    return {layer - start_layer: own for layer, own in layers.items()}
