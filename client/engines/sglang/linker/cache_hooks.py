"""Hooks into SGLang's radix cache, by SGLang's own registry of hooks, for what it does not tell a linker."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from sglang.srt.disaggregation.kv_events import BlockRemoved, BlockStored
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from pagetier.client.client import Client
from pagetier.client.engines.events.changes import LocationChanges
from pagetier.client.engines.sglang.linker.events import SglangEvents
from pagetier.client.engines.sglang.linker.transfers import Transfers
from pagetier.client.engines.sglang.pools.engine_groups import hashes_of

_CACHE: Final = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"


def sglang_events(client: Client, lease: float) -> SglangEvents:
    """Returns the events of an engine. `lease` is that of LocationChanges."""
    return SglangEvents(LocationChanges(client, lease), BlockStored, BlockRemoved)


@cache
def install_hooks() -> None:
    """Lets SGLang's radix cache call the linker from now on. A cache with another linker is not affected."""
    HookRegistry.register(f"{_CACHE}.take_events", _take_events, HookType.AFTER)
    HookRegistry.register(f"{_CACHE}.on_release", _on_release, HookType.AFTER)
    HookRegistry.register(f"{_CACHE}.release_radix_session", _release_radix_session, HookType.AFTER)
    HookRegistry.apply_hooks()


def _transfers(radix_cache: Any) -> Transfers | None:
    """Returns the transfers of a cache whose linker is pagetier's."""
    return getattr(getattr(radix_cache.linker, "cache_linker", None), "transfers", None)


def _take_events(events: list[Any], radix_cache: Any) -> Any:
    transfers = _transfers(radix_cache)
    return events if transfers is None else transfers.with_events(events)


def _on_release(_: None, radix_cache: Any, req: Any, **__: Any) -> None:
    transfers = _transfers(radix_cache)
    if transfers is not None:
        transfers.released(req, lambda: _hashes_of(req, radix_cache.page_size))


def _release_radix_session(_: int, radix_cache: Any, session_id: str) -> None:
    transfers = _transfers(radix_cache)
    if transfers is not None:
        transfers.session_closed(session_id)


def _hashes_of(req: Any, page: int) -> bytes:
    """Returns SGLang's hashes of the full pages of a request, 32 bytes each."""
    tokens = req.full_untruncated_fill_ids
    key = RadixKey(tokens[: len(tokens) // page * page], req.extra_key, cache_salt=req.cache_salt)
    return hashes_of(get_storage_hash_str(key, None, page_size=page))
