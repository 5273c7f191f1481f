"""Hooks into SGLang's radix cache, by SGLang's own registry of hooks, for what it does not tell a linker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

from sglang.srt.disaggregation.kv_events import BlockRemoved, BlockStored, EventPublisherFactory, KVEventBatch
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from pagetier.client.client import Client
from pagetier.client.engines.events.changes import LocationChanges
from pagetier.client.engines.events.idle_publisher import IdlePublisher, use_next_publisher
from pagetier.client.engines.sglang.linker.events import SglangEvents
from pagetier.client.engines.sglang.linker.transfers import Transfers
from pagetier.client.engines.sglang.pools.engine_groups import hashes_of
from pagetier.shm import clock

log = logging.getLogger("pagetier.sglang")

_CACHE: Final = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
_REMEDY: Final = "add pagetier to SGLANG_PLUGINS, or remove that plugin"


def sglang_events(client: Client, lease: float) -> SglangEvents:
    """Returns the events of an engine. `lease` is that of LocationChanges."""
    return SglangEvents(LocationChanges(client, lease), BlockStored, BlockRemoved)


def idle_publisher() -> IdlePublisher:
    """Returns what publishes events while SGLang does not, by the publisher that SGLang's scheduler makes next."""
    idle = IdlePublisher(lambda events: KVEventBatch(ts=clock.date(), events=events), log)
    use_next_publisher(EventPublisherFactory, idle)
    return idle


@cache
def register_hooks() -> frozenset[str]:
    """Lets SGLang's radix cache call the linker once hooks are applied. A cache with another linker is not affected.

    Returns:
        The methods on which hooks were applied before: SGLang skips those that are registered later.
    """
    skipped = frozenset(name for name in _HOOKS if f"{_CACHE}.{name}" in HookRegistry._patched)
    for name, own in _HOOKS.items():
        HookRegistry.register(f"{_CACHE}.{name}", own.hook, HookType.AFTER)
    return skipped


def install_hooks() -> None:
    """Lets SGLang's radix cache call the linker from now on, and logs hooks of others on the same methods.

    The hooks are registered already if SGLang has called the entry point of pagetier.
    """
    skipped = register_hooks()
    HookRegistry.apply_hooks()
    for name in _HOOKS:
        if others := _foreign_hooks(name):
            _log_foreign(name, others, skipped=name in skipped)


def _foreign_hooks(name: str) -> str:
    """Returns the names of the plugins that have hooked a method, too."""
    hooks = HookRegistry._hooks.get(f"{_CACHE}.{name}", ())
    others = {
        (source and source.plugin_name) or hook.__module__ for _, hook, source in hooks if hook != _HOOKS[name].hook
    }
    return ", ".join(sorted(others))


def _log_foreign(name: str, others: str, *, skipped: bool) -> None:
    if skipped:
        line = "pagetier %s: a hook of %s on UnifiedRadixCache.%s came first; %s"
        log.warning(line, _HOOKS[name].missing, others, name, _REMEDY)
    else:
        log.warning("pagetier shares UnifiedRadixCache.%s with a hook of %s", name, others)


def _transfers(radix_cache: Any) -> Transfers | None:
    """Returns the transfers of a cache whose linker is pagetier's."""
    return getattr(getattr(radix_cache.linker, "cache_linker", None), "transfers", None)


def _take_events(events: list[Any], radix_cache: Any) -> Any:
    transfers = _transfers(radix_cache)
    return events if transfers is None else transfers.with_events(events)


def _on_release(_: None, radix_cache: Any, req: Any, **__: Any) -> None:
    transfers = _transfers(radix_cache)
    if transfers is not None:
        transfers.released(req, lambda: _hashes_of(req, radix_cache))


def _release_radix_session(_: int, radix_cache: Any, session_id: str) -> None:
    transfers = _transfers(radix_cache)
    if transfers is not None:
        transfers.session_closed(session_id)


def _hashes_of(req: Any, radix_cache: Any) -> bytes:
    """Returns SGLang's hashes of the full pages of a request, 32 bytes each: with EAGLE those of pairs of tokens."""
    key = RadixKey(req.full_untruncated_fill_ids, req.extra_key, cache_salt=req.cache_salt)
    key, _ = key.maybe_to_bigram_view(radix_cache.tree_core.is_eagle)
    page = radix_cache.page_size
    return hashes_of(get_storage_hash_str(key.page_aligned(page), None, page_size=page))


class _CacheHook(NamedTuple):
    """A hook, and what pagetier does not do where SGLang does not call it."""

    hook: Callable[..., Any]
    missing: str


_HOOKS: Final = {
    "take_events": _CacheHook(_take_events, "announces no pages to routers"),
    "on_release": _CacheHook(_on_release, "passes on no hints of requests"),
    "release_radix_session": _CacheHook(_release_radix_session, "passes on no ends of sessions"),
}
"""The hooks by the methods of SGLang's radix cache."""
