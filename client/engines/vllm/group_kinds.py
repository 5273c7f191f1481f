"""Determines which kind of state a KV cache group of vLLM has."""

from __future__ import annotations

from typing import Any

from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.groups import ChunkedAttention, FullAttention, Group, Recurrent, SlidingWindow


def kind_of(spec: Any) -> Group:
    """Returns the kind of state of a KVCacheSpec.

    Raises:
        UnsupportedError: The kind is unknown, so that the pages that a hit needs cannot be determined.
    """
    if getattr(spec, "kv_cache_specs", None):
        return _common([kind_of(one) for one in layer_specs(spec)], spec)
    _check(spec)
    match type(spec).__name__:
        case "FullAttentionSpec" | "MLAAttentionSpec":
            return FullAttention(spec.block_size)
        case "SlidingWindowSpec":
            return SlidingWindow(spec.block_size, spec.sliding_window + getattr(spec, "extra_retained_tokens", 0))
        case "ChunkedLocalAttentionSpec":
            return ChunkedAttention(spec.block_size, spec.attention_chunk_size)
        case "MambaSpec":
            return Recurrent(spec.block_size)
        case other:
            raise UnsupportedError(f"layers with a {other} are not supported")


def layer_specs(spec: Any) -> tuple[Any, ...]:
    """Returns the specification of each layer of a group, in its order; a single one if it is the same for all."""
    return tuple((getattr(spec, "kv_cache_specs", None) or {"": spec}).values())


def has_latents(spec: Any) -> bool:
    """Returns whether all layers of a group have latent attention (MLA), whose one head all ranks have."""
    return all(type(one).__name__ == "MLAAttentionSpec" for one in layer_specs(spec))


def _common(kinds: list[Group], spec: Any) -> Group:
    if any(kind != kinds[0] for kind in kinds):
        raise UnsupportedError(f"a group has layers of several kinds: {type(spec).__name__}")
    return kinds[0]


def _check(spec: Any) -> None:
    name = type(spec).__name__
    if not getattr(spec, "prefix_cacheable", True) or getattr(spec, "prefix_replay_tokens", 0) > 0:
        raise UnsupportedError(f"layers with a {name} take no part in prefix caching")
    if name != "MambaSpec" and getattr(spec, "tokens_per_state", 1) != 1:
        raise UnsupportedError(f"layers with a {name} of {spec.tokens_per_state} tokens a state are not supported")
    if name == "MambaSpec" and _mode(spec) not in ("align", "all"):
        raise UnsupportedError("recurrent state requires --enable-prefix-caching --mamba-cache-mode align")
    if has_every_state(spec) and int(getattr(spec, "num_speculative_blocks", 0)):
        raise UnsupportedError("recurrent state with drafts requires --mamba-cache-mode align")


def has_every_state(spec: Any) -> bool:
    """Returns whether a step leaves a recurrent state at each end of a page, and not only at its own end."""
    return type(spec).__name__ == "MambaSpec" and _mode(spec) == "all"


def _mode(spec: Any) -> str:
    return str(getattr(spec, "mamba_cache_mode", "none"))
