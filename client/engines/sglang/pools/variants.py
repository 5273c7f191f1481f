"""Names the formats of SGLang's pools: bytes of the same sizes may have another meaning."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

_PLAIN: Final = ("MHATokenToKVPool", "MLATokenToKVPool")
_SETTINGS: Final = (
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


def variants_of(pools: Iterable[Any]) -> tuple[str, ...]:
    """Returns a text for each of SGLang's pools that are parts of a page; nothing for plain K and V, and latents."""
    texts = [_text(pool) for owner in pools for pool in _parts(owner) if type(pool).__name__ not in _PLAIN]
    return tuple(dict.fromkeys(texts))


def _parts(owner: Any) -> Iterable[Any]:
    """Yields the pools of which one consists: compressed states have a list of them, with None for other layers."""
    if isinstance(owner, (list, tuple)):
        yield from (pool for pool in owner if pool is not None)
        return
    yield owner
    yield from (part for name in _PARTS if (part := getattr(owner, name, None)) is not None)


def _text(pool: Any) -> str:
    settings = [(name, getattr(pool, name)) for name in _SETTINGS if hasattr(pool, name)]
    return " ".join([type(pool).__name__, *(f"{name}={getattr(value, 'value', value)}" for name, value in settings)])
