"""Describes SGLang's pools whose pages are opaque rows of several buffers, which all ranks have alike.

These are sparse attention (DSA) and DeepSeek V4: latents, index keys, compressed states and windows lie in buffers of
their own, whose rows belong to other numbers of tokens. Of most of them SGLang itself says to linkers where the rows
are, in its DevicePoolGroup.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from pagetier.client.engines.sglang.pools.token_planes import paged
from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.cache_layout import CacheLayout


class RowPool(msgspec.Struct, frozen=True, eq=False):
    """The rows that follow one component of SGLang's tree.

    Attributes:
        name: The component, by SGLang's PoolName.
        rows: The rows of its layers.
        layers: The layer of `rows` for each layer of this pipeline stage that has some.
        owners: SGLang's pools that have the buffers.
    """

    name: str
    rows: CacheLayout
    layers: Mapping[int, int]
    owners: Sequence[Any]


def row_pools(group: Any) -> tuple[RowPool, ...]:
    """Returns the pools of SGLang's DevicePoolGroup, the one with full attention first.

    Raises:
        UnsupportedError: The ranks divide the pools.
        LayoutError: A row is not contiguous.
    """
    if not group.rank_replicated:
        raise UnsupportedError("SGLang divides these pools among the ranks, and does not say how")
    by_source = defaultdict(list)
    for entry in group.entries:
        by_source[entry.indices_from_pool.value].append(entry)
    return tuple(
        _row_pool(name, by_source[name], group.num_layers) for name in sorted(by_source, key=lambda name: name != "kv")
    )


def sparse_rows(pool: Any, page: int, layers: Iterable[int] | None = None) -> CacheLayout:
    """Returns the rows of some or all layers of a DSA pool: latents, and the index keys of a page."""
    index = pool.index_k_with_scale_buffer
    own = range(len(pool.kv_buffer)) if layers is None else list(layers)
    latents = paged([pool.kv_buffer[layer] for layer in own], page)
    return engine_layouts.rows(
        [[kv, *([index[at]] if len(index[at]) else [])] for kv, at in zip(latents, own, strict=True)]
    )


def latent_rows(pool: Any, page: int) -> CacheLayout:
    """Returns the rows of an MLA pool whose pages have only some of their tokens on this rank."""
    return engine_layouts.rows([[latents] for latents in paged(pool.kv_buffer, page)])


def _row_pool(name: str, entries: Sequence[Any], layers: int) -> RowPool:
    tensors = {layer: list(_tensors(entries, layer)) for layer in range(layers)}
    own = [layer for layer, rows in tensors.items() if rows]
    rows = engine_layouts.rows([tensors[layer] for layer in own])
    return RowPool(name, rows, {layer: at for at, layer in enumerate(own)}, [entry.device_pool for entry in entries])


def _tensors(entries: Sequence[Any], layer: int) -> Iterable[Any]:
    """Yields the buffers of one layer as [pages, ...]."""
    for entry in entries:
        mapped = entry.layer_mapping.get(layer)
        for component in entry.components:
            for at in () if mapped is None else (mapped,) if isinstance(mapped, int) else mapped:
                yield component[at] if entry._row_span == 1 else paged([component[at]], entry.page_size)[0]
