"""Describes SGLang's attention pools that have a row for each token: K and V, latents, scales, index keys.

A page of such a pool has the order of a page of any other engine, so that its heads can be divided among any number of
ranks. Kinds of DIVIDED are divided, all ranks have the others alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.kernels.layout.tensors import View, view_of

Layers: TypeAlias = Sequence[list[tuple[str, View]]]
"""The planes of each layer, with the axes (pages, tokens, heads, elements)."""

DIVIDED: Final = ("k", "v", "k scale", "v scale")


def token_planes(pool: Any, page: int) -> Layers:
    """Returns the planes of a pool. Raises UnsupportedError for a pool whose content is not known."""
    match type(pool).__name__:
        case "MHATokenToKVPool" | "MHATokenToKVPoolFP4" | "MHATokenToKVPoolMXFP8":
            return _heads(pool, page)
        case "MLATokenToKVPool" | "MLATokenToKVPoolFP4":
            return _latents(pool, page)
        case "MiniMaxSparseKVPool":
            return _sparse(pool, _heads(pool.main_pool, page), page)
        case "MiniMaxM3Nvfp4KVPool":
            return _sparse_rows(pool)
        case other:
            raise UnsupportedError(
                f"the KV pool {other} is not known: pagetier caches MHA, GQA, MLA, DSA, DeepSeek V4 and MiniMax-M3"
            )


def divided_kinds(layers: Layers) -> set[str]:
    """Returns the kinds of planes that the ranks divide, also those of a draft model."""
    kinds = {kind for layer in layers for kind, _ in layer}
    return {kind for kind in kinds if kind in DIVIDED or _of_draft(kind) in DIVIDED}


def paged(tensors: Iterable[Any], page: int) -> list[Any]:
    """Returns views of [slots, ...] as [pages, slots, ...]. Slots after the last whole page are not used by SGLang."""
    return [_whole_pages(tensor, page).unflatten(0, (-1, page)) for tensor in tensors]


def packed_index(pool: Any, page: int) -> Layers:
    """Returns the compressed index keys of QSA, which all ranks have: as many bytes for each token of a page.

    Raises:
        UnsupportedError: The bytes of a page are no multiple of its tokens.
    """
    keys, states = pool.qsa_compressed_k_buffer_pool, pool.qsa_compressed_page_size
    if keys and keys[0][0].numel() * states % page:
        raise UnsupportedError(f"index keys of {states} states cannot be divided among the {page} tokens of a page")
    pages = [_whole_pages(buffer, states) for buffer in keys]
    return _named(index_k=[one.view(len(one) // states, page, 1, -1) for one in pages])


def _whole_pages(tensor: Any, slots: int) -> Any:
    return tensor[: len(tensor) // slots * slots]


def _of_draft(kind: str) -> str:
    """Returns the kind of a plane without the number of its draft layer."""
    return kind.split(" ", 2)[-1] if kind.startswith("draft ") else kind


def _named(**kinds: Iterable[Any]) -> Layers:
    """Returns the planes of each layer, of which each kind has one tensor a layer; "_" in a name is a space."""
    names = [name.replace("_", " ") for name in kinds]
    return [
        [(name, view_of(tensor)) for name, tensor in zip(names, tensors, strict=True)]
        for tensors in zip(*kinds.values(), strict=True)
    ]


def _heads(pool: Any, page: int) -> Layers:
    layout = getattr(pool, "kv_cache_layout", "nhd")
    if layout not in ("nhd", "hnd"):
        raise UnsupportedError(f"the KV layout {layout} is not known: unset SGLANG_AITER_KV_CACHE_LAYOUT")
    if getattr(pool, "native_k_scale_buffer", None) is not None:
        raise UnsupportedError("K and V with scales of the attention backend: choose another --kv-cache-dtype")
    buffers = {"k": pool.k_buffer, "v": pool.v_buffer}
    if layout == "hnd":
        return _named(**{name: [one.transpose(1, 2) for one in tensors] for name, tensors in buffers.items()})
    planes = {name: paged(tensors, page) for name, tensors in buffers.items()}
    if pool.k_scale_buffer is not None:
        planes |= {name: _scales(pool, getattr(pool, f"{name}_buffer"), page) for name in ("k_scale", "v_scale")}
    return _named(**planes)


def _scales(pool: Any, scales: Iterable[Any], page: int) -> list[Any]:
    """Returns the scales of K or V as [pages, tokens, heads, scales]."""
    if getattr(pool, "mxfp8_sf_interleaved", False):
        # [pages, heads, 32, 4, scales]: the scales of a head and page are contiguous, whatever their order is.
        return [scale.flatten(2, 3).transpose(1, 2) for scale in scales]
    return [one if one.ndim == 4 else one.unflatten(2, (pool.head_num, -1)) for one in paged(scales, page)]


def _latents(pool: Any, page: int) -> Layers:
    planes = {"latent": paged(pool.kv_buffer, page)}
    if pool.kv_scale_buffer is not None:
        planes["scale"] = [scale.unsqueeze(2) for scale in paged(pool.kv_scale_buffer, page)]
    return _named(**planes)


def _sparse(pool: Any, layers: Layers, page: int) -> Layers:
    """Adds the index keys, and values where there are, of the sparse layers. All ranks have the same."""
    if pool.dense_pool is not None or getattr(pool, "_enable_hisparse", False):
        raise UnsupportedError("HiSparse keeps a part of the cache in host memory: leave --enable-hisparse out")
    keys, both = pool.index_k_layer_id_mapping, pool.index_kv_layer_id_mapping
    indexes = [(keys, "index k", pool.index_k_pool, "k_buffer")]
    indexes += [(both, f"index {name}", pool.index_kv_pool, f"{name}_buffer") for name in ("k", "v")]
    for mapping, kind, owner, buffer in indexes:
        planes = paged(getattr(owner, buffer), page) if mapping else ()
        for layer, own in mapping.items():
            layers[layer - pool.start_layer].append((kind, view_of(planes[own])))
    return layers


def _sparse_rows(pool: Any) -> Layers:
    """Returns the components of MiniMax-M3's packed pages: FP4 values and scales, [pages, heads, tokens, elements]."""
    main, index = pool.main_pool, pool.index_k_pool
    kinds = {"k": main.k_buffer, "k_scale": main.k_scale_buffer, "v": main.v_buffer, "v_scale": main.v_scale_buffer}
    planes = {name: [one.transpose(1, 2) for one in tensors] for name, tensors in kinds.items()}
    planes |= {
        name: [one.unsqueeze(2) for one in tensors]
        for name, tensors in (("index_k", index.k_buffer), ("index_scale", index.k_scale_buffer))
    }
    return _named(**planes)
