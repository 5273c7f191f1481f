"""Describes SGLang's device pools as the caches of layer groups, and rejects pools whose content is not known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from pagetier.client.engines.sglang.pools.row_pools import latent_rows, row_pools, sparse_rows
from pagetier.client.engines.sglang.pools.token_planes import Layers, divided_kinds, packed_index, token_planes
from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.groups import FullAttention, Group, Recurrent, SlidingWindow
from pagetier.client.registration import CacheGroup
from pagetier.kernels.layout.cache_layout import cache_of

FULL: Final = "kv"
WINDOW: Final = "swa"
STATE: Final = "mamba"
DRAFT: Final = "draft"

_PLAIN: Final = ("MHATokenToKVPool", "MLATokenToKVPool")
_FORMAT_SETTINGS: Final = (
    "kv_layout",
    "use_fp4_indexer",
    "uses_aiter_fp4_layout",
    "index_k_page8",
    "index_k_rne",
    "index_kpool",
    "index_kpool_compress",
    "dsa_kv_cache_store_fp8",
    "mxfp8_sf_interleaved",
    "qsa_compress_ratio",
    "ring_size",
)
_PARTS: Final = ("main_pool", "index_k_pool", "index_kv_pool")

_DESCRIBED: Final = ("DSATokenToKVPool", "DeepSeekV4TokenToKVPool")
_LAYER_SPLIT: Final = "LayerSplitDSATokenToKVPool"
_HYBRID: Final = ("HybridLinearKVPool", "QSATokenToKVPool")


class DevicePool(msgspec.Struct, frozen=True, eq=False):
    """The device memory of one layer group on this rank.

    Attributes:
        name: SGLang's PoolName: "kv", "swa" or "mamba".
        pool: SGLang's pool.
        group: The tensors, in blocks of one page, and the kind of the group.
        layers: The layer of the group for each layer of this pipeline stage that belongs to it.
        page_slots: The number of slots that one page has in `device_indices`.
        variants: What distinguishes formats of the same sizes, see variants_of().
    """

    name: str
    pool: Any
    group: CacheGroup
    layers: Mapping[int, int]
    page_slots: int
    variants: Sequence[str] = ()


def device_pools(
    params: Any, heads: Callable[[str], int], described: Callable[[], Any], splits: int = 1
) -> tuple[DevicePool, ...]:
    """Returns the pools of a model, the one with full attention first.

    Args:
        params: SGLang's CacheInitParams.
        heads: Returns the KV heads of the whole model in the layers of a pool; of DRAFT those of the draft model.
        described: Returns SGLang's DevicePoolGroup, for pools that it describes to linkers itself.
        splits: The number of ranks that divide the tokens of a page.

    Returns:
        The pools.

    Raises:
        UnsupportedError: A pool is not known.
        LayoutError: The tensors of a pool cannot be copied.
    """
    cache = params.token_to_kv_pool_allocator.get_kvcache()
    if splits > 1:
        return _split_tokens(cache, params, splits)
    if divides_layers(cache):
        return _split_layers(cache, params)
    if type(cache).__name__ in _DESCRIBED:
        return _described_pools(described(), cache, params)
    return (*_attention_pools(cache, params, heads), *_state_pools(params.req_to_token_pool, cache, params.page_size))


def divides_layers(cache: Any) -> bool:
    """Returns whether the ranks of context parallelism divide the layers of a pool."""
    return type(cache).__name__ == _LAYER_SPLIT


def _split_tokens(cache: Any, params: Any, splits: int) -> tuple[DevicePool, ...]:
    """Returns the latents of which this rank has every `splits`th token: row n has the slots from n * splits on.

    SGLang's pages are those of all ranks together, so that their numbers are those of the pages of each.

    Raises:
        UnsupportedError: The state is another one, which SGLang divides in other ways.
    """
    if type(cache).__name__ != "MLATokenToKVPool" or _drafts(params):
        raise UnsupportedError("state other than latents (MLA) of decode context parallelism: leave --dcp-size out")
    rows = latent_rows(cache, params.page_size // splits)
    group = CacheGroup(kv_caches=rows, kind=FullAttention(params.page_size))
    return (DevicePool(FULL, cache, group, {layer: layer for layer in range(cache.layer_num)}, params.page_size),)


def _split_layers(cache: Any, params: Any) -> tuple[DevicePool, ...]:
    """Returns the layers of sparse attention that this rank has. SGLang's ranks send each other those that they lack.

    Raises:
        UnsupportedError: There is a draft model, which is not divided.
    """
    if params.mtp_draft_device_pools or params.sidecar_draft_device_pools:
        raise UnsupportedError("a draft model beside divided layers: leave --enable-dsa-cache-layer-split out")
    own = [layer for layer, latents in enumerate(cache.kv_buffer) if len(latents)]
    group = CacheGroup(kv_caches=sparse_rows(cache, params.page_size, own), kind=FullAttention(params.page_size))
    variants = (*variants_of([cache]), f"layers {own[0]} to {own[-1]} of {cache.layer_num}")
    layers = {layer: at for at, layer in enumerate(own)}
    return (DevicePool(FULL, cache, group, layers, params.page_size, variants),)


def require_replicas(pools: Iterable[DevicePool]) -> None:
    """Rejects pools that context parallelism divides: its ranks have the same attention, and other recurrent state.

    Raises:
        UnsupportedError: The message says what to change.
    """
    if any(pool.name == STATE for pool in pools):
        raise UnsupportedError("recurrent layers divided by context parallelism: leave --attn-cp-size out")


def _described_pools(group: Any, cache: Any, params: Any) -> tuple[DevicePool, ...]:
    page, window = params.page_size, params.swa_retain_window
    kinds: dict[str, Group] = {FULL: FullAttention(page)} | ({WINDOW: SlidingWindow(page, window)} if window else {})
    return tuple(
        DevicePool(
            *(pool.name, cache, CacheGroup(kv_caches=pool.rows, kind=kinds[pool.name]), pool.layers, page),
            variants=variants_of(pool.owners),
        )
        for pool in row_pools(group)
    )


def _attention_pools(cache: Any, params: Any, heads: Callable[[str], int]) -> tuple[DevicePool, ...]:
    page, drafts = params.page_size, _drafts(params)
    match type(cache).__name__:
        case "SWAKVPool":
            return _window_pools(cache, params, heads, drafts)
        case name if name in _HYBRID:
            layers = _local(cache.full_attention_layer_id_mapping, cache.start_layer)
            index = packed_index(cache, page) if name == "QSATokenToKVPool" else []
            return (_attention(FULL, cache.full_kv_pool, layers, FullAttention(page), heads, [index, drafts]),)
        case _:
            layers = {layer: layer for layer in range(cache.layer_num)}
            return (_attention(FULL, cache, layers, FullAttention(page), heads, [drafts]),)


def _window_pools(cache: Any, params: Any, heads: Callable[[str], int], drafts: Layers) -> tuple[DevicePool, ...]:
    page, mapping = params.page_size, cache.layers_mapping
    full = {layer: own for layer, (own, windowed) in mapping.items() if not windowed}
    windowed = {layer: own for layer, (own, windowed) in mapping.items() if windowed}
    kind = SlidingWindow(page, int(params.swa_retain_window))
    start = cache.start_layer
    return (
        _attention(FULL, cache.full_kv_pool, _local(full, start), FullAttention(page), heads, [drafts]),
        _attention(WINDOW, cache.swa_kv_pool, _local(windowed, start), kind, heads),
    )


def _attention(
    name: str,
    pool: Any,
    layers: Mapping[int, int],
    kind: Group,
    heads: Callable[[str], int],
    beside: Sequence[Layers] = (),
) -> DevicePool:
    """Returns the pool of a group, whose pages also have what is beside it: an index, and layers of draft models."""
    if type(pool).__name__ == "DSATokenToKVPool":
        if any(beside):
            raise UnsupportedError(
                "a draft model beside sparse attention (DSA) and windows: leave --speculative-algorithm out"
            )
        group = CacheGroup(kv_caches=sparse_rows(pool, kind.page_tokens), kind=kind)
        return DevicePool(name, pool, group, layers, kind.page_tokens, variants_of([pool]))
    planes = token_planes(pool, kind.page_tokens)
    counts = dict.fromkeys(divided_kinds(planes), heads(name))
    for more in beside:
        counts |= {kind: heads(DRAFT) for kind in divided_kinds(more)}
        for at, its in enumerate(more):
            planes[min(at, len(planes) - 1)].extend(its)
    group = CacheGroup(kv_caches=cache_of(planes), kind=kind, num_kv_heads=counts)
    return DevicePool(name, pool, group, layers, kind.page_tokens, variants_of([pool]))


def _drafts(params: Any) -> Layers:
    """Returns the planes of each layer of the draft models, which have the slots of the model.

    Raises:
        UnsupportedError: A draft model has recurrent state, or a pool that is not known.
    """
    if params.mtp_draft_mamba_pools:
        raise UnsupportedError("the recurrent state of a draft model is not cached: leave --speculative-algorithm out")
    layers: list[Any] = []
    for draft in (*params.mtp_draft_device_pools, *params.sidecar_draft_device_pools):
        pool = draft.full_kv_pool if type(draft).__name__ in _HYBRID else draft
        layers.extend(token_planes(pool, params.page_size))
    return [[(f"{DRAFT} {at} {kind}", view) for kind, view in planes] for at, planes in enumerate(layers)]


def _state_pools(requests: Any, cache: Any, page: int) -> tuple[DevicePool, ...]:
    """Returns the recurrent states, of which each slot is one snapshot; nothing for a model without them.

    Raises:
        UnsupportedError: Requests have states beside those of the layers.
    """
    if not hasattr(requests, "mamba_pool"):
        return ()
    extra = getattr(requests, "mamba_ckpt_pool", None) is not None
    siblings = (getattr(getattr(requests, name, None), "enabled", False) for name in ("short_conv_pool", "ngram_pool"))
    if extra or any(siblings):
        raise UnsupportedError("recurrent layers have checkpoints in int8 or side states, which are not cached")
    states = [
        state
        for state in (requests.mamba_pool.mamba_cache.temporal, *requests.mamba_pool.mamba_cache.conv)
        if state.numel()
    ]
    tensors = [[state[layer] for state in states] for layer in range(requests.mamba_pool.num_mamba_layers)]
    group = CacheGroup(kv_caches=tensors, layout="states", kind=Recurrent(page))
    return (DevicePool(STATE, requests.mamba_pool, group, _local(requests.mamba_map, cache.start_layer), 1),)


def _local(layers: Mapping[int, int], start_layer: int) -> dict[int, int]:
    return {layer - start_layer: own for layer, own in layers.items()}


def variants_of(pools: Iterable[Any]) -> tuple[str, ...]:
    """Returns the format of each of SGLang's pools that are parts of a page; none for plain K and V, and latents.

    Bytes of the same sizes may have another meaning.
    """
    texts = [_format(pool) for owner in pools for pool in _pools_of(owner) if type(pool).__name__ not in _PLAIN]
    return tuple(dict.fromkeys(texts))


def _pools_of(owner: Any) -> Iterable[Any]:
    """Yields the pools of which one consists: compressed states have a list of them, with None for other layers."""
    if isinstance(owner, (list, tuple)):
        yield from (pool for pool in owner if pool is not None)
        return
    yield owner
    yield from (part for name in _PARTS if (part := getattr(owner, name, None)) is not None)


def _format(pool: Any) -> str:
    settings = [(name, getattr(pool, name)) for name in _FORMAT_SETTINGS if hasattr(pool, name)]
    if (states := getattr(pool, "kv_score_buffer", None)) is not None:  # of DeepSeek V4, whose rings have no dtype
        settings.append(("dtype", states.kv_score.dtype))
    return " ".join([type(pool).__name__, *(f"{name}={getattr(value, 'value', value)}" for name, value in settings)])
