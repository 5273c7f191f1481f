"""Opens the transfers of one rank from SGLang's configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from secrets import token_hex
from typing import Any, Final

from pagetier.client.client import Client
from pagetier.client.engines.sglang.device_pools import FULL, DevicePool, device_pools
from pagetier.client.engines.sglang.engine_log import LinkerLog, describe_cache, log, log_rejected
from pagetier.client.engines.sglang.groups import EngineGroup
from pagetier.client.engines.sglang.host_pools import host_pool
from pagetier.client.engines.sglang.identity import IdentifyingThread
from pagetier.client.engines.sglang.loads import LayerCounter
from pagetier.client.engines.sglang.lookups import Lookups
from pagetier.client.engines.sglang.model import (
    Ranks,
    engine_facts,
    heads_of,
    require_known,
    require_no_draft,
    this_engine,
)
from pagetier.client.engines.sglang.namespace import namespace_of, weights_source
from pagetier.client.engines.sglang.settings import (
    LinkerSettings,
    StorageSettings,
    read_settings,
    read_storage_settings,
)
from pagetier.client.engines.sglang.storage_pages import StoragePages
from pagetier.client.engines.sglang.transfers import ServedGroups, Streams, Transfers
from pagetier.client.engines.vllm.file_digests import FileDigests, user_memory
from pagetier.client.engines.vllm.group_kinds import UnsupportedError
from pagetier.client.engines.vllm.namespace import ModelIdentity
from pagetier.client.engines.vllm.prefetch import PrefetchThread
from pagetier.client.engines.vllm.weights import started_ns
from pagetier.client.keys import Namespace
from pagetier.client.registered_cache import RegisteredCache
from pagetier.client.registration import paged_cache_of
from pagetier.kernels.config.file import load_settings
from pagetier.kernels.layout.page_layout import Shard
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
        SettingsError: The file of copy settings is wrong.
        ValueError: A setting is wrong.
    """
    settings = read_settings(extra)
    load_settings()  # the copiers read them later, where an error could not be reported once
    require_known(params)
    require_no_draft(params)
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


def open_storage(config: Any, host: Any) -> StoragePages:
    """Returns the pages of a host pool of SGLang's HiCache. They are those of the linker, whatever the host layout is.

    Args:
        config: SGLang's HiCacheStorageConfig.
        host: SGLang's host pool.

    Returns:
        The pages.

    Raises:
        UnsupportedError: Something is not supported.
        LayoutError: The tensors of the pool do not fit the model.
        ValueError: A setting is wrong.
    """
    settings = read_storage_settings(config.extra_config or {})
    require_known(config)
    facts = this_engine()
    if facts.adapters:
        raise UnsupportedError(
            "SGLang knows LoRA adapters by their paths only: use the linker for models with adapters"
        )
    pool = host_pool(host, heads_of(facts.model)(FULL))
    # Of latents all ranks have the same: the first one stores whole pages.
    paged = paged_cache_of(pool.group, Shard() if config.is_mla_model else Shard(config.tp_rank, config.tp_size))
    weights = IdentifyingThread(weights_source(facts, settings.weights, started_ns()), FileDigests(user_memory()))
    attachment_log = LinkerLog()
    client = _client(settings, log_rejected if config.tp_rank else attachment_log.on_link)

    @cache
    def group_of(identity: ModelIdentity) -> EngineGroup:
        (group,) = _groups(client, [pool], [paged], [namespace_of(facts, pool, paged, identity, settings.salt)])
        attachment_log.opened(lambda: describe_cache(client.session, [group]))
        return group

    def opened() -> EngineGroup | None:
        identity = weights.identity
        return group_of(identity) if identity is not None and identity.weights else None

    weights.wait(_IDENTIFY_S)
    return StoragePages(
        client, lambda: opened() if weights.identity and weights.identity.weights else None, settings.timeout
    )


def _groups(
    client: Client, pools: Sequence[DevicePool], paged: Sequence[PagedCache], namespaces: Sequence[Namespace]
) -> tuple[EngineGroup, ...]:
    caches = (RegisteredCache(client, own, name) for own, name in zip(paged, namespaces, strict=True))
    return tuple(
        EngineGroup(pool.name, cache, pool.layers, pool.page_slots) for pool, cache in zip(pools, caches, strict=True)
    )


def _client(settings: LinkerSettings | StorageSettings, on_link: Callable[..., None]) -> Client:
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
