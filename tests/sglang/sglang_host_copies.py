"""Replaces what SGLang's host pools do on a GPU: registering their memory, and copying between host and device."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.memory_pool_host import DeepSeekV4PagedHostPool, DeepSeekV4StateHostPool
from sglang.srt.mem_cache.pool_host import base, common
from sglang.srt.mem_cache.pool_host.dsa import DSAIndexerPoolHost
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost


def install() -> None:
    """Replaces the copies and the registration. SGLang keeps 10 GiB of the host free, which tiny pools need not."""
    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0
    for module in (base, common):
        for name in ("_cuda_host_register", "_cuda_host_unregister"):
            if hasattr(module, name):
                setattr(module, name, lambda *_, **__: None)
    for name in ("wait_stream", "synchronize", "wait_event", "record_event"):
        if not hasattr(torch.cpu.Stream, name):
            setattr(torch.cpu.Stream, name, lambda *_, **__: None)
    for kind in (MHATokenToKVPoolHost, MLATokenToKVPoolHost):
        kind.load_to_device_per_layer = _load
        kind.backup_from_device_all_layer = _back_up
    DSAIndexerPoolHost.load_to_device_per_layer = _load_index
    DSAIndexerPoolHost.backup_from_device_all_layer = _back_up_index
    for of_v4 in (DeepSeekV4PagedHostPool, DeepSeekV4StateHostPool):
        of_v4.load_to_device_per_layer = _load_rows
        of_v4.backup_from_device_all_layer = _back_up_rows
    MambaPoolHost.load_to_device_per_layer = _load_states
    MambaPoolHost.backup_from_device_all_layer = _back_up_states


def _load(
    self: Any, _pool: Any, host: torch.Tensor, device: torch.Tensor, layer_id: int, _io: str, *, is_draft: bool = False
) -> None:
    if layer_id >= self.target_layer_num and not is_draft:
        return  # as in SGLang: these are the layers of a draft, which has a transfer of its own
    for host_buffer, layers in _buffers(self):
        layers[layer_id][device] = host_buffer[_places(self, host, layer_id)]


def _back_up(self: Any, _pool: Any, host: torch.Tensor, device: torch.Tensor, _io: str) -> None:
    for host_buffer, layers in _buffers(self):
        for layer, tensor in enumerate(layers):
            host_buffer[_places(self, host, layer)] = tensor[device]


def _load_index(
    self: Any, _pool: Any, host: torch.Tensor, device: torch.Tensor, layer_id: int, _io: str, *, is_draft: bool = False
) -> None:
    if not is_draft and layer_id not in self._device_to_host_layer:
        return  # as in SGLang: a layer without index keys, or one of a draft, which has a transfer of its own
    layer = self._draft_host_layer(layer_id) if is_draft else self._host_layer_index(layer_id)
    pages, own = self._get_indexer_page_indices(host.cpu(), device)
    self.packed_device_index_buffers[layer][own] = _index_rows(self, layer)[pages]


def _back_up_index(self: Any, _pool: Any, host: torch.Tensor, device: torch.Tensor, _io: str) -> None:
    pages, own = self._get_indexer_page_indices(host.cpu(), device)
    for layer, keys in enumerate(self.packed_device_index_buffers):
        _index_rows(self, layer)[pages] = keys[own]


def _index_rows(pool: Any, layer: int) -> torch.Tensor:
    """Returns the host's index keys of one layer, a row for each page."""
    index: torch.Tensor = pool.index_k_with_scale_buffer
    return index[layer] if pool.layout == "layer_first" else index[:, layer, 0]


def _load_rows(
    self: Any, _pool: Any, host: torch.Tensor, device: torch.Tensor, layer_id: int, _io: str, *, is_draft: bool = False
) -> None:
    _device_rows(self)[layer_id][self._to_page_indices(device)] = _host_rows(self, layer_id)[
        self._to_page_indices(host.cpu())
    ]


def _back_up_rows(self: Any, _pool: Any, host: torch.Tensor, device: torch.Tensor, _io: str) -> None:
    pages, own = self._to_page_indices(host.cpu()), self._to_page_indices(device)
    for layer, rows in enumerate(_device_rows(self)):
        _host_rows(self, layer)[pages] = rows[own]


def _device_rows(pool: Any) -> list[torch.Tensor]:
    """Returns the rows of each layer of a pool of DeepSeek V4, one of bytes for each page."""
    if hasattr(pool, "device_page_views"):
        return list(pool.device_page_views)
    return [buffer.view(torch.uint8).flatten(1) for buffer in pool.device_buffers]


def _host_rows(pool: Any, layer: int) -> torch.Tensor:
    buffer: torch.Tensor = pool.kv_buffer[layer] if pool.layout == "layer_first" else pool.kv_buffer[:, layer]
    return buffer.flatten(1)


def _load_states(
    self: Any, _pool: Any, host: torch.Tensor, device: torch.Tensor, layer_id: int, _io: str, *, is_draft: bool = False
) -> None:
    assert not is_draft
    for host_buffer, layers in _states(self):
        layers[layer_id][device] = host_buffer[host.cpu(), layer_id, 0]


def _back_up_states(self: Any, _pool: Any, host: torch.Tensor, device: torch.Tensor, _io: str) -> None:
    for host_buffer, layers in _states(self):
        for layer, tensor in enumerate(layers):
            host_buffer[host.cpu(), layer, 0] = tensor[device]


def _states(pool: Any) -> list[tuple[torch.Tensor, Any]]:
    """Returns the host's buffer and the device's layers of each state."""
    return [
        (pool.temporal_buffer, pool.temporal_device_layers),
        *zip(pool.conv_buffer, pool.conv_device_layers, strict=True),
    ]


def _buffers(pool: Any) -> list[tuple[torch.Tensor, Any]]:
    """Returns the host's buffer and the device's layers of K and V, or of the latents."""
    if isinstance(pool, MHATokenToKVPoolHost):
        return [(pool.kv_buffer[0], pool.device_k_buffers), (pool.kv_buffer[1], pool.device_v_buffers)]
    return [(pool.kv_buffer, pool.device_kv_buffers)]


def _places(pool: Any, tokens: torch.Tensor, layer: int) -> Any:
    """Returns the index of tokens in a buffer, whose result has the axes (tokens, heads, elements)."""
    tokens = tokens.cpu()
    page, offset = tokens // pool.page_size, tokens % pool.page_size
    match pool.layout:
        case "layer_first":
            return layer, tokens
        case "page_first":
            return tokens, layer
        case "page_first_direct":
            return page, layer, offset
        case _:
            return page, slice(None), offset, layer
