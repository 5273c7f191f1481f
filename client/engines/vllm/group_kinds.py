"""Which kind of state a group of vLLM's has, told by what its specification says of itself."""

from __future__ import annotations

from typing import Any

from pagetier.client.groups import FullAttention, Group, Recurrent, SlidingWindow


class UnsupportedError(Exception):
    """A model or a setting whose state is not cached; the message is for people."""


def kind_of(spec: Any) -> Group:
    """Of a KVCacheSpec. Raises UnsupportedError for a kind that is not known here: what it needs at a hit is not."""
    inner = getattr(spec, "kv_cache_specs", None)
    if inner:
        return _common([kind_of(one) for one in inner.values()], spec)
    _check(spec)
    match type(spec).__name__:
        case "FullAttentionSpec" | "MLAAttentionSpec":
            return FullAttention(spec.block_size)
        case "SlidingWindowSpec":
            return SlidingWindow(spec.block_size, spec.sliding_window)
        case "MambaSpec":
            return Recurrent(spec.block_size)
        case other:
            raise UnsupportedError(f"layers of {other} are not cached")


def _common(kinds: list[Group], spec: Any) -> Group:
    if any(kind != kinds[0] for kind in kinds):
        raise UnsupportedError(f"one group with layers of several kinds: {type(spec).__name__}")
    return kinds[0]


def _check(spec: Any) -> None:
    name = type(spec).__name__
    if getattr(spec, "extra_retained_tokens", 0):
        raise UnsupportedError("windows that keep tokens for a draft model are not cached")
    if not getattr(spec, "prefix_cacheable", True) or getattr(spec, "prefix_replay_tokens", 0) > 0:
        raise UnsupportedError(f"layers of {name} take no part in prefix caching")
    if name == "MambaSpec" and getattr(spec, "mamba_cache_mode", "none") != "align":
        raise UnsupportedError("recurrent state is cached with --enable-prefix-caching --mamba-cache-mode align alone")
