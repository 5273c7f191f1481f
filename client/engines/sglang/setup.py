"""Opens the transfers of one rank from SGLang's configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache, partial
from secrets import token_hex
from typing import Any, Final

import msgspec

from pagetier.client.client import Client
from pagetier.client.engines.attachment_log import AttachmentLog
from pagetier.client.engines.file_digests import FileDigests, user_memory
from pagetier.client.engines.fleet_reads import FleetLimits, FleetReads
from pagetier.client.engines.prefetch_thread import PrefetchThread
from pagetier.client.engines.sglang.engine.model import (
    Ranks,
    engine_facts,
    heads_of,
    require_known,
    require_no_draft,
    this_engine,
)
from pagetier.client.engines.sglang.engine.namespace import EngineFacts, namespace_of, weights_source
from pagetier.client.engines.sglang.engine.settings import (
    LinkerSettings,
    StorageSettings,
    read_settings,
    read_storage_settings,
)
from pagetier.client.engines.sglang.linker.cache_hooks import install_hooks, sglang_events
from pagetier.client.engines.sglang.linker.loads import LayerCounter
from pagetier.client.engines.sglang.linker.lookups import Lookups, ReadingThread
from pagetier.client.engines.sglang.linker.released_hints import ReleasedHints
from pagetier.client.engines.sglang.linker.transfers import RankServices, ServedGroups, Streams, Transfers
from pagetier.client.engines.sglang.pools.device_pools import FULL, STATE, DevicePool, device_pools
from pagetier.client.engines.sglang.pools.engine_groups import EngineGroup, describe_cache
from pagetier.client.engines.sglang.pools.host_pools import host_pools
from pagetier.client.engines.sglang.storage.pages import StoragePages
from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.engines.weights import ModelIdentity, started_ns
from pagetier.client.engines.weights_thread import WeightsThread
from pagetier.client.registered_cache import RegisteredCache
from pagetier.client.registration import paged_cache_of
from pagetier.kernels.config.settings_file import load_settings
from pagetier.kernels.layout.page_layout import Shard
from pagetier.kernels.layout.transfer import PagedCache

log = logging.getLogger("pagetier.sglang")

_ATTACH_S: Final = 1.0
_IDENTIFY_S: Final = 5.0
_LINKER_OPTION: Final = "linker_extra_config"
_STORAGE_OPTION: Final = "--hicache-storage-backend-extra-config"


class _Engine(msgspec.Struct, frozen=True, eq=False):
    """The engine's facts, its pools, and the paged cache of each pool."""

    facts: EngineFacts
    pools: Sequence[DevicePool]
    paged: Sequence[PagedCache]

    def groups(self, client: Client, identity: ModelIdentity, salt: str) -> tuple[EngineGroup, ...]:
        """Returns the group of each pool, with the namespace that the model's identity and the salt give it."""
        return tuple(
            self._group(client, pool, own, identity, salt) for pool, own in zip(self.pools, self.paged, strict=True)
        )

    def _group(
        self, client: Client, pool: DevicePool, own: PagedCache, identity: ModelIdentity, salt: str
    ) -> EngineGroup:
        name = namespace_of(self.facts, pool, own, identity, salt)
        return EngineGroup(pool.name, RegisteredCache(client, own, name), pool.layers, pool.page_slots)


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
    engine = _Engine(facts, pools, [paged_cache_of(pool.group, ranks.shard) for pool in pools])
    weights = _weights_thread(facts, settings, _LINKER_OPTION)
    own_salt = ranks.of_first(token_hex(16))
    attachment_log = AttachmentLog(log, _LINKER_OPTION)
    client = _client(settings, attachment_log, ranks.shard.rank)
    prefetch = PrefetchThread(client)
    reading = None if ranks.shard.rank else ReadingThread(prefetch, _fleet_reads(client, prefetch, settings))
    if facts.adapters:
        log.warning("pagetier shares no pages with other engines: SGLang knows LoRA adapters by their paths only")

    def opened(flushes: int) -> ServedGroups | None:
        if not weights.ended:
            return None
        shared = weights.identity.weights and not facts.adapters and (not flushes or settings.flush == "keep")
        groups = engine.groups(client, weights.identity, settings.salt if shared else f"{own_salt} {flushes}")
        if not flushes:
            attachment_log.opened(lambda: describe_cache(client.session, groups))
        return ServedGroups(groups, Lookups(client, groups, reading, settings, several_ranks=ranks.several))

    weights.wait(_IDENTIFY_S)
    streams = _streams(engine.paged[0].cache.device, forward_stream)
    services = _services(ranks.shard.rank, facts, params, client, settings, prefetch)
    return Transfers(client, opened, services, counter, ranks, streams), pools


def open_storage(config: Any, hosts: Mapping[str, Any]) -> StoragePages:
    """Returns the pages of the host pools of SGLang's HiCache. They are those of the linker in every host layout.

    Args:
        config: SGLang's HiCacheStorageConfig.
        hosts: SGLang's host pools by the name of its PoolName.

    Returns:
        The pages.

    Raises:
        UnsupportedError: Something is not supported.
        LayoutError: The tensors of a pool do not fit the model.
        ValueError: A setting is wrong.
    """
    settings = read_storage_settings(config.extra_config or {})
    require_known(config)
    facts = this_engine()
    if facts.adapters:
        raise UnsupportedError(
            "SGLang knows LoRA adapters by their paths only: use the linker for models with adapters"
        )
    pools = host_pools(hosts, hosts[FULL].page_size, heads_of(facts.model))
    engine = _Engine(facts, pools, [paged_cache_of(pool.group, _storage_shard(config, pool)) for pool in pools])
    weights = _weights_thread(facts, settings, _STORAGE_OPTION)
    attachment_log = AttachmentLog(log, _STORAGE_OPTION)
    client = _client(settings, attachment_log, config.tp_rank)

    @cache
    def groups_of(identity: ModelIdentity) -> Mapping[str, EngineGroup]:
        groups = engine.groups(client, identity, settings.salt)
        attachment_log.opened(lambda: describe_cache(client.session, groups))
        return {group.name: group for group in groups}

    def opened() -> Mapping[str, EngineGroup] | None:
        return groups_of(weights.identity) if weights.ended and weights.identity.weights else None

    weights.wait(_IDENTIFY_S)
    return StoragePages(client, opened, FleetLimits(settings.timeout, settings.remote_least))


def _fleet_reads(client: Client, thread: PrefetchThread, settings: LinkerSettings) -> FleetReads:
    reads = FleetReads(client, thread)
    reads.limits = FleetLimits(settings.remote_timeout, settings.remote_least)
    return reads


def _services(
    rank: int, facts: EngineFacts, params: Any, client: Client, settings: LinkerSettings, prefetch: PrefetchThread
) -> RankServices:
    """Returns what a rank does beside its transfers. On the first rank, SGLang's cache calls pagetier from now on."""
    if rank:
        return RankServices(prefetch)
    install_hooks()
    events = sglang_events(client, settings.events_lease) if params.enable_kv_cache_events else None
    by_priority = getattr(facts.server, "radix_eviction_policy", "") == "priority"
    return RankServices(prefetch, events, ReleasedHints(prefetch, by_priority=by_priority))


def _storage_shard(config: Any, pool: DevicePool) -> Shard:
    """Returns the share of this rank. All ranks have the same latents, so that the first one stores whole pages."""
    return Shard() if config.is_mla_model and pool.name != STATE else Shard(config.tp_rank, config.tp_size)


def _weights_thread(facts: EngineFacts, settings: LinkerSettings | StorageSettings, option: str) -> WeightsThread:
    source = weights_source(facts, settings.weights, started_ns())
    return WeightsThread([source], FileDigests(user_memory()), log, option)


def _client(settings: LinkerSettings | StorageSettings, attachment_log: AttachmentLog, rank: int) -> Client:
    """Returns the client of a rank. The first rank logs the connection for all, the others only their rejection."""
    on_link = attachment_log.on_rejected if rank else attachment_log.on_link
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
