"""The cache layouts that Client.register() takes by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.cache_layout import CacheLayout, LayoutError

KvCaches: TypeAlias = "Mapping[str, Any] | Sequence[Any] | Any"
"""The tensors of an engine's cache in the order of its layers: a sequence, a mapping from layer names, or one tensor
whose first axis is the layer. Layouts with K and V apart take a pair of those.
"""


def cache_layout_of(kv_caches: KvCaches, name: str) -> CacheLayout:
    """Returns the layout of an engine's tensors.

    Args:
        kv_caches: The tensors of this rank.
        name: One of LAYOUT_NAMES.

    Returns:
        The layout.

    Raises:
        LayoutError: The name is unknown, or the tensors do not have this layout. The message says what was expected.
        TypeError: There is something else than tensors.
    """
    if name not in _CONSTRUCTORS:
        raise LayoutError(f"unknown layout {name!r}: use one of {', '.join(LAYOUT_NAMES)}, or pass a CacheLayout")
    return _CONSTRUCTORS[name](kv_caches)


def _layers(kv_caches: KvCaches) -> list[Any]:
    return list(kv_caches.values()) if isinstance(kv_caches, Mapping) else list(kv_caches)


def _pair(kv_caches: KvCaches) -> tuple[list[Any], list[Any]]:
    parts = _layers(kv_caches)
    if len(parts) != 2 or any(hasattr(part, "shape") and not len(part.shape) for part in parts):
        raise LayoutError(f"expected a pair (tensors of K, tensors of V), got {len(parts)} items")
    return _layers(parts[0]), _layers(parts[1])


def _sglang(kv_caches: KvCaches) -> CacheLayout:
    layers = _layers(kv_caches)
    if layers and hasattr(layers[0], "shape") and len(layers[0].shape) == 3:
        return engine_layouts.latents(layers)
    return engine_layouts.separate_slots(*_pair(layers))


def _lightllm(kv_caches: Any) -> CacheLayout:
    return engine_layouts.token_slots(kv_caches)


_CONSTRUCTORS: Final[Mapping[str, Callable[[KvCaches], CacheLayout]]] = {
    "vllm": lambda kv_caches: engine_layouts.vllm_of_any_version(_layers(kv_caches)),
    "sglang": _sglang,
    "lightllm": _lightllm,
    "flash_attention": lambda kv_caches: engine_layouts.kv_first(_layers(kv_caches)),
    "flashinfer": lambda kv_caches: engine_layouts.kv_second(_layers(kv_caches)),
    "separate_blocks": lambda kv_caches: engine_layouts.separate_blocks(*_pair(kv_caches)),
    "mla": lambda kv_caches: engine_layouts.latents(_layers(kv_caches)),
    "states": lambda kv_caches: engine_layouts.states(_layers(kv_caches)),
    "rows": lambda kv_caches: engine_layouts.rows(_layers(kv_caches)),
}

LAYOUT_NAMES: Final = tuple(_CONSTRUCTORS)
"""The known layouts:

    vllm             any of vLLM's layouts, recognised by the shape of the tensors
    sglang           (K, V): [tokens, heads, elements] for each layer; or MLA latents [tokens, 1, elements]
    lightllm         one tensor [layers, tokens, 2 x heads, elements]
    flash_attention  [2, blocks, tokens, heads, elements] for each layer
    flashinfer       [blocks, 2, tokens, heads, elements] for each layer
    separate_blocks  (K, V): [blocks, tokens, heads, elements] for each layer
    mla              [blocks, tokens, elements] for each layer, or [tokens, 1, elements]
    states           for each layer a sequence of recurrent states [blocks, ...]
    rows             for each layer a sequence of buffers [blocks, ...], whose blocks are opaque and of any size
"""
