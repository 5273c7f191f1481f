"""Determines which KV cache groups of vLLM have pages, and which kind of state each of them has."""

from __future__ import annotations

from typing import Any, Final

from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.groups import ChunkedAttention, FullAttention, Group, Recurrent, SlidingWindow

_WITHOUT: Final = "start this model without pagetier (PAGETIER=0)"
_HISPARSE: Final = "HiSparse keeps it in host memory: leave hisparse_config out of --attention-config"
_REFUSED: Final = {
    "CrossAttentionSpec": f"vLLM's hashes of tokens do not identify the input of an encoder: {_WITHOUT}",
    "RSWASpec": f"it frees blocks in the middle of an answer (R-SWA), so that no prefix stays whole: {_WITHOUT}",
    "HiddenStateCacheSpec": (
        "hidden states are taken by a connector of their own: leave extract_hidden_states out of --speculative-config"
    ),
    "HiSparseHotSpec": _HISPARSE,
    "HiSparseResidentSpec": _HISPARSE,
}
_OF_A_REQUEST: Final = ("CircularBufferSpec", "EncoderOnlyAttentionSpec")
_LATENTS: Final = ("MLAAttentionSpec", "SlidingWindowMLASpec")


def cached_groups(config: Any) -> dict[int, Any]:
    """Returns vLLM's groups that have pages, by their numbers in its KVCacheConfig.

    The others are left out, because their state is not part of a prefix: vLLM computes it again behind a hit (buffers
    of a request, windows that are replayed) or copies it from a group that has pages.

    Raises:
        UnsupportedError: A group has state that a hit needs and that is not cached, or no group has pages.
    """
    cached = {}
    for number, group in enumerate(config.kv_cache_groups):
        try:
            if _takes_part(group):
                kind_of(group.kv_cache_spec)
                cached[number] = group
        except UnsupportedError as error:
            raise UnsupportedError(f"{_name_of(number, group)}: {error}") from error
    if not cached:
        raise UnsupportedError(f"no group of layers takes part in prefix caching: {_WITHOUT}")
    return cached


def kind_of(spec: Any) -> Group:
    """Returns the kind of state of a KVCacheSpec.

    Raises:
        UnsupportedError: The kind is unknown, so that the pages that a hit needs cannot be determined.
    """
    if getattr(spec, "kv_cache_specs", None):
        return _common([kind_of(one) for one in layer_specs(spec)], spec)
    if reason := _REFUSED.get(type(spec).__name__):
        raise UnsupportedError(reason)
    _check(spec)
    match type(spec).__name__:
        case "FullAttentionSpec" | "MLAAttentionSpec" | "SinkFullAttentionSpec":
            return FullAttention(spec.block_size)
        case "SlidingWindowSpec" | "SlidingWindowMLASpec":
            return SlidingWindow(spec.block_size, spec.sliding_window + getattr(spec, "extra_retained_tokens", 0))
        case "ChunkedLocalAttentionSpec":
            return ChunkedAttention(spec.block_size, spec.attention_chunk_size)
        case "MambaSpec":
            return Recurrent(spec.block_size)
        case other:
            raise UnsupportedError(f"layers with a {other} are not supported: {_WITHOUT}")


def layer_specs(spec: Any) -> tuple[Any, ...]:
    """Returns the specification of each layer of a group, in its order; a single one if it is the same for all."""
    return tuple((getattr(spec, "kv_cache_specs", None) or {"": spec}).values())


def has_latents(spec: Any) -> bool:
    """Returns whether all layers of a group have latent attention (MLA), whose one head all ranks have."""
    return all(type(one).__name__ in _LATENTS for one in layer_specs(spec))


def has_every_state(spec: Any) -> bool:
    """Returns whether a step leaves a recurrent state at each end of a page, and not only at its own end."""
    return type(spec).__name__ == "MambaSpec" and _mode(spec) == "all"


def _takes_part(group: Any) -> bool:
    """Returns whether the state of a group is part of a prefix.

    Raises:
        UnsupportedError: It is part of HiSparse, which is a cache of its own.
    """
    specs = layer_specs(group.kv_cache_spec)
    if getattr(group, "host_resident", False) or any(_REFUSED.get(type(one).__name__) == _HISPARSE for one in specs):
        raise UnsupportedError(_HISPARSE)
    return getattr(group, "enable_kv_transfer", True) and not any(map(_is_of_a_request, specs))


def _is_of_a_request(spec: Any) -> bool:
    """Returns whether the state of a layer belongs to one request, so that no other can begin with it."""
    replayed = getattr(spec, "prefix_replay_tokens", 0) > 0
    return replayed or not getattr(spec, "prefix_cacheable", True) or type(spec).__name__ in _OF_A_REQUEST


def _name_of(number: int, group: Any) -> str:
    """Returns what a log line calls a group."""
    names = list(group.layer_names)
    layers = f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else "".join(names)
    return f"group {number} ({type(layer_specs(group.kv_cache_spec)[0]).__name__} of {layers})"


def _common(kinds: list[Group], spec: Any) -> Group:
    if any(kind != kinds[0] for kind in kinds):
        raise UnsupportedError(f"a group has layers of several kinds: {type(spec).__name__}")
    return kinds[0]


def _check(spec: Any) -> None:
    name = type(spec).__name__
    if _is_of_a_request(spec):
        raise UnsupportedError(f"layers with a {name} take no part in prefix caching")
    if getattr(spec, "non_causal", False):
        raise UnsupportedError(f"the state of a token depends on later tokens (prefix LM): {_WITHOUT}")
    if getattr(spec, "compress_ratio", 1) not in (None, 0, 1):
        raise UnsupportedError("layers with one state for several tokens need vLLM 0.32 or later")
    if name == "MambaSpec" and _mode(spec) not in ("align", "all"):
        raise UnsupportedError("recurrent state requires --enable-prefix-caching --mamba-cache-mode align")
    if has_every_state(spec) and int(getattr(spec, "num_speculative_blocks", 0)):
        raise UnsupportedError("recurrent state with drafts requires --mamba-cache-mode align")


def _mode(spec: Any) -> str:
    return str(getattr(spec, "mamba_cache_mode", "none"))
