"""Describes SGLang's host pools, which its HiCache keeps, as the cache of a layer group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pagetier.client.engines.sglang.device_pools import FULL, DevicePool
from pagetier.client.engines.vllm.group_kinds import UnsupportedError
from pagetier.client.groups import FullAttention
from pagetier.client.registration import CacheGroup

# One layer of a buffer as [pages, tokens, heads, elements], from the shape that each layout has.
_LAYERS: Final[Mapping[str, Callable[[Any, int, int], Any]]] = {
    "layer_first": lambda buffer, layer, page: buffer[layer].unflatten(0, (-1, page)),
    "page_first": lambda buffer, layer, page: buffer[:, layer].unflatten(0, (-1, page)),
    "page_first_direct": lambda buffer, layer, page: buffer[:, layer],
    "page_head": lambda buffer, layer, page: buffer[:, :, :, layer].transpose(1, 2),
}


def host_pool(pool: Any, heads: int) -> DevicePool:
    """Returns the host pool of full attention, in the same form as a device pool.

    Args:
        pool: SGLang's host pool.
        heads: The KV heads of the whole model.

    Returns:
        The pool.

    Raises:
        UnsupportedError: The pool or its layout is not known.
    """
    if pool.layout not in _LAYERS:
        known = ", ".join(_LAYERS)
        raise UnsupportedError(f"the layout {pool.layout} is not known: set --hicache-mem-layout to one of {known}")
    kind, layers = FullAttention(pool.page_size), {layer: layer for layer in range(pool.layer_num)}
    match type(pool).__name__:
        case "MHATokenToKVPoolHost":
            tensors = [layers_of(pool, buffer) for buffer in (pool.k_buffer, pool.v_buffer)]
            group = CacheGroup(kv_caches=tensors, layout="separate_blocks", kind=kind, num_kv_heads=heads)
        case "MLATokenToKVPoolHost":
            latents = [layer.squeeze(2) for layer in layers_of(pool, pool.kv_buffer)]
            group = CacheGroup(kv_caches=latents, layout="mla", kind=kind)
        case other:
            raise UnsupportedError(f"the host pool {other} is not known: use the linker for models with such a cache")
    return DevicePool(FULL, pool, group, layers, pool.page_size)


def layers_of(pool: Any, buffer: Any) -> list[Any]:
    """Returns each layer of a buffer as [pages, tokens, heads, elements]."""
    return [_LAYERS[pool.layout](buffer, layer, pool.page_size) for layer in range(pool.layer_num)]
