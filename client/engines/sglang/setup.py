"""Opens the transfers of one rank from SGLang's configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import Any, Final

from pagetier.client.client import Client
from pagetier.client.engines.sglang.device_pools import DevicePool, device_pools
from pagetier.client.engines.sglang.engine_log import LinkerLog, describe_cache, log, log_rejected
from pagetier.client.engines.sglang.groups import EngineGroup
from pagetier.client.engines.sglang.identity import IdentifyingThread
from pagetier.client.engines.sglang.loads import LayerCounter
from pagetier.client.engines.sglang.lookups import Lookups
from pagetier.client.engines.sglang.model import Ranks, engine_facts, heads_of, require_supported
from pagetier.client.engines.sglang.namespace import namespace_of, weights_source
from pagetier.client.engines.sglang.settings import LinkerSettings, read_settings
from pagetier.client.engines.sglang.transfers import ServedGroups, Streams, Transfers
from pagetier.client.engines.vllm.file_digests import FileDigests, user_memory
from pagetier.client.engines.vllm.prefetch import PrefetchThread
from pagetier.client.engines.vllm.weights import started_ns
from pagetier.client.keys import Namespace
from pagetier.client.registered_cache import RegisteredCache
from pagetier.client.registration import paged_cache_of
from pagetier.kernels.layout.transfer import PagedCache

_ATTACH_S: Final = 1.0
_IDENTIFY_S: Final = 5.0


def open_transfers(
    server: Any, params: Any, extra: Mapping[str, Any], counter: LayerCounter, forward_stream: Any
) -> tuple[Transfers, tuple[DevicePool, ...]]:
    """Returns the transfers of this rank and the pools that they serve. All ranks call it.

    Args:
        server: SGLang's ServerArgs.
        params: SGLang's CacheInitParams.
        extra: The settings.
        counter: The counter of SGLang's pools.
        forward_stream: The stream on which the model writes its caches; None for the current stream.

    Returns:
        The transfers and the pools.

    Raises:
        UnsupportedError: Something is not supported.
        LayoutError: The tensors of a pool do not fit the model.
        ValueError: A setting is wrong.
    """
    settings = read_settings(extra)
    require_supported(params)
    ranks, facts = Ranks(params), engine_facts(server)
    pools = device_pools(params, heads_of(facts.model))
    paged = [paged_cache_of(pool.group, ranks.shard) for pool in pools]
    source = weights_source(facts, settings.weights, started_ns())
    weights = IdentifyingThread(source, FileDigests(user_memory()))
    own_salt = ranks.of_first(token_hex(16))
    attachment_log = LinkerLog()
    client = _client(settings, log_rejected if ranks.shard.rank else attachment_log.on_link)
    prefetch = PrefetchThread(client)
    if facts.adapters:
        log.warning("pagetier shares no pages with other engines: SGLang knows LoRA adapters by their paths only")

    def opened(flushes: int) -> ServedGroups | None:
        identity = weights.identity
        if identity is None:
            return None
        shared = identity.weights and not facts.adapters and (not flushes or settings.flush == "keep")
        salt = settings.salt if shared else f"{own_salt} {flushes}"
        names = [namespace_of(facts, pool, own, identity, salt) for pool, own in zip(pools, paged, strict=True)]
        groups = _groups(client, pools, paged, names)
        if not flushes:
            attachment_log.opened(lambda: describe_cache(client.session, groups))
        first = None if ranks.shard.rank else prefetch
        return ServedGroups(groups, Lookups(client, groups, first, settings, several_ranks=ranks.several))

    weights.wait(_IDENTIFY_S)
    return Transfers(client, opened, prefetch, counter, ranks, _streams(paged[0].cache.device, forward_stream)), pools


def _groups(
    client: Client, pools: Sequence[DevicePool], paged: Sequence[PagedCache], namespaces: Sequence[Namespace]
) -> tuple[EngineGroup, ...]:
    caches = (RegisteredCache(client, own, name) for own, name in zip(paged, namespaces, strict=True))
    return tuple(
        EngineGroup(pool.name, cache, pool.layers, pool.page_slots) for pool, cache in zip(pools, caches, strict=True)
    )


def _client(settings: LinkerSettings, on_link: Callable[..., None]) -> Client:
    client = Client(settings.socket or None, name=settings.name, on_link=on_link)
    client.wait_attached(_ATTACH_S)
    return client


def _streams(device: str, forward_stream: Any) -> Streams:
    if device == "cpu":
        return Streams(lambda: None, None)
    return Streams(partial(_recorded, device, forward_stream), partial(_current_stream, device))


def _recorded(device: str, forward_stream: Any) -> object:
    import torch

    return (forward_stream or torch.cuda.current_stream(device)).record_event()


def _current_stream(device: str) -> object:
    import torch

    return torch.cuda.current_stream(device)
