"""The bytes of SGLang's host pools: reading from the store may change the slots that SGLang names, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from pagetier.client.engines.sglang.pools.host_pools import RIDES
from sglang_untouched import Untouched

_CACHED: Final = ("kv", "swa", "mamba", *RIDES)  # an engine with other pools is refused


class HostRows:
    """The rows of all host pools, and those that SGLang has asked the store to load.

    Args:
        pools: The host pools by the name of their PoolName.
        backend: The store. Its loads are recorded from now on.
    """

    def __init__(self, pools: Mapping[str, Any], backend: Any) -> None:
        cached = pools if all(name in _CACHED for name in pools) else {}
        self._rows = {name: _rows(pool) for name, pool in cached.items()}
        self._units = {name: 1 if name == "mamba" else pool.page_size for name, pool in cached.items()}
        self._asked: list[tuple[str, torch.Tensor]] = []
        self._before = Untouched()
        self._record(backend)

    def remember(self) -> None:
        """Remembers all bytes."""
        self._asked.clear()
        self._before = Untouched(tensor for tensors in self._rows.values() for tensor in tensors)

    def overwrite(self) -> None:
        """Fills all rows with other bytes. No row may be in use."""
        for tensors in self._rows.values():
            for tensor in tensors:
                tensor.view(torch.uint8).random_(0, 256)

    def only_asked(self) -> bool:
        """Returns whether nothing has changed since remember() but what SGLang has asked for."""
        return self._before.beside(
            (tensor, slots // self._units[name]) for name, slots in self._asked for tensor in self._rows[name]
        )

    def _record(self, backend: Any) -> None:
        get_v1, get_v2 = backend.batch_get_v1, backend.batch_get_v2

        def recorded_v1(keys: list[str], indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
            self._asked.append(("kv", indices.cpu()))
            return list(get_v1(keys, indices, extra_info))

        def recorded_v2(transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
            self._asked.extend((one.name.value, one.host_indices.cpu()) for one in transfers if one.keys)
            return dict(get_v2(transfers, extra_info))

        backend.batch_get_v1, backend.batch_get_v2 = recorded_v1, recorded_v2


def _rows(pool: Any) -> list[torch.Tensor]:
    """Returns the buffers of a host pool, the first dimension of which are pages, or the slots of states."""
    if hasattr(pool, "temporal_buffer"):
        return [one for one in (pool.temporal_buffer, *pool.conv_buffer) if one.numel()]
    if hasattr(pool, "index_k_with_scale_buffer"):
        index = pool.index_k_with_scale_buffer
        return [index.movedim(1, 0) if pool.layout == "layer_first" else index]
    if pool.kv_buffer is None or isinstance(pool.kv_buffer, list):  # of DeepSeek V4
        return list(pool.kv_buffer or ())
    buffers = list(pool.kv_buffer) if hasattr(pool, "device_k_buffers") else [pool.kv_buffer]
    match pool.layout:
        case "layer_first":
            return [one.unflatten(1, (-1, pool.page_size)).movedim(1, 0) for one in buffers]
        case "page_first" if not hasattr(pool, "pool_name"):
            return [one.unflatten(0, (-1, pool.page_size)) for one in buffers]
        case _:
            return buffers
