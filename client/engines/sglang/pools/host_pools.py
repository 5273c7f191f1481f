"""Describes SGLang's host pools, which its HiCache keeps, as the caches of layer groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pagetier.client.engines.sglang.pools.device_pools import FULL, STATE, WINDOW, DevicePool
from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.groups import FullAttention, Recurrent, SlidingWindow
from pagetier.client.registration import CacheGroup

# One layer of a buffer as [pages, tokens, heads, elements], from the shape that each layout has.
_LAYERS: Final[Mapping[str, Callable[[Any, int, int], Any]]] = {
    "layer_first": lambda buffer, layer, page: buffer[layer].unflatten(0, (-1, page)),
    "page_first": lambda buffer, layer, page: buffer[:, layer].unflatten(0, (-1, page)),
    "page_first_direct": lambda buffer, layer, page: buffer[:, layer],
    "page_head": lambda buffer, layer, page: buffer[:, :, :, layer].transpose(1, 2),
}
_STATE_LAYOUTS: Final = ("page_first", "page_first_direct")


def host_pools(pools: Mapping[str, Any], page: int, heads: Callable[[str], int]) -> tuple[DevicePool, ...]:
    """Returns the host pools of a model in the same form as its device pools, the one with full attention first.

    Args:
        pools: SGLang's host pools by the name of its PoolName.
        page: The number of tokens in a page.
        heads: Returns the KV heads of the whole model in the layers of a pool.

    Returns:
        The pools.

    Raises:
        UnsupportedError: A pool or its layout is not known.
    """
    if unknown := sorted(pools.keys() - {FULL, WINDOW, STATE}):
        raise UnsupportedError(
            f"the host pools {', '.join(unknown)} of HiCache are not known: use the linker, without --pp-size"
        )
    names = sorted(pools, key=(FULL, WINDOW, STATE).index)
    return tuple(
        _states(pools[name], page) if name == STATE else _attention(name, pools[name], heads(name)) for name in names
    )


def layers_of(pool: Any, buffer: Any) -> list[Any]:
    """Returns each layer of a buffer as [pages, tokens, heads, elements]."""
    return [_LAYERS[pool.layout](buffer, layer, pool.page_size) for layer in range(pool.layer_num)]


def _attention(name: str, pool: Any, heads: int) -> DevicePool:
    _require_layout(pool, tuple(_LAYERS))
    # How long the window is does not matter here: SGLang passes the pages of each window.
    kind = FullAttention(pool.page_size) if name == FULL else SlidingWindow(pool.page_size, pool.page_size)
    match type(pool).__name__:
        case "MHATokenToKVPoolHost":
            tensors = [layers_of(pool, buffer) for buffer in (pool.k_buffer, pool.v_buffer)]
            group = CacheGroup(kv_caches=tensors, layout="separate_blocks", kind=kind, num_kv_heads=heads)
        case "MLATokenToKVPoolHost":
            latents = [layer.squeeze(2) for layer in layers_of(pool, pool.kv_buffer)]
            group = CacheGroup(kv_caches=latents, layout="mla", kind=kind)
        case other:
            raise UnsupportedError(f"the host pool {other} is not known: use the linker for models with such a cache")
    return DevicePool(name, pool, group, _own(pool.layer_num), pool.page_size)


def _states(pool: Any, page: int) -> DevicePool:
    """Returns the recurrent states, of which each slot is one snapshot."""
    _require_layout(pool, _STATE_LAYOUTS)
    if pool.slot_state_buffers or pool.mtp_draft_buffer_infos:
        raise UnsupportedError("side states of recurrent layers and states of draft models are not supported yet")
    states = [state for state in (pool.temporal_buffer, *pool.conv_buffer) if state.numel()]
    tensors = [[state[:, layer, 0] for state in states] for layer in range(pool.num_mamba_layers)]
    group = CacheGroup(kv_caches=tensors, layout="states", kind=Recurrent(page))
    return DevicePool(STATE, pool, group, _own(pool.num_mamba_layers), 1)


def _require_layout(pool: Any, known: tuple[str, ...]) -> None:
    if pool.layout not in known:
        raise UnsupportedError(
            f"the layout {pool.layout} is not known: set --hicache-mem-layout to one of {', '.join(known)}"
        )


def _own(layers: int) -> dict[int, int]:
    return {layer: layer for layer in range(layers)}
