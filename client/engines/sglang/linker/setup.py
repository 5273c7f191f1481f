"""Opens the transfers of one rank from SGLang's configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from secrets import token_hex
from typing import Any

import msgspec

from pagetier.client.client import Client
from pagetier.client.engines.attachment_log import AttachmentLog
from pagetier.client.engines.disk_reads import DiskReads
from pagetier.client.engines.fleet_reads import FleetLimits, FleetReads
from pagetier.client.engines.prefetch_thread import PrefetchThread
from pagetier.client.engines.sglang.engine.batch_hook import measure_batches
from pagetier.client.engines.sglang.engine.batch_times import BatchTimes
from pagetier.client.engines.sglang.engine.model import Ranks, described_pools, engine_facts, heads_of, require_known
from pagetier.client.engines.sglang.engine.namespace import EngineFacts
from pagetier.client.engines.sglang.engine.served_engine import (
    ServedEngine,
    open_client,
    wait_for_weights,
    weights_thread,
)
from pagetier.client.engines.sglang.engine.settings import LinkerSettings, read_settings
from pagetier.client.engines.sglang.linker.cache_hooks import idle_publisher, install_hooks, sglang_events
from pagetier.client.engines.sglang.linker.loads import LayerCounter
from pagetier.client.engines.sglang.linker.lookups import Lookups
from pagetier.client.engines.sglang.linker.reading import Reading
from pagetier.client.engines.sglang.linker.released_hints import ReleasedHints
from pagetier.client.engines.sglang.linker.transfers import RankServices, ServedGroups, Streams, Transfers
from pagetier.client.engines.sglang.pools.device_pools import DevicePool, device_pools, require_replicas
from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.engines.weights import ModelIdentity
from pagetier.client.load_or_compute import LoadOrCompute, load_modes
from pagetier.client.registration import paged_cache_of
from pagetier.kernels.config.settings_file import load_settings

log = logging.getLogger("pagetier.sglang")


class LinkerParts(msgspec.Struct, frozen=True, eq=False):
    """What SGLang and its linker have on a rank.

    Attributes:
        server: SGLang's ServerArgs.
        params: SGLang's CacheInitParams.
        components: The components of SGLang's tree.
        counter: The counter of SGLang's pools.
        forward_stream: The stream on which the model writes its caches; None for the current stream.
    """

    server: Any
    params: Any
    components: Any
    counter: LayerCounter
    forward_stream: Any


def open_transfers(parts: LinkerParts, extra: Mapping[str, Any]) -> tuple[Transfers, tuple[DevicePool, ...]]:
    """Returns the transfers of this rank and the pools that they serve, on all ranks or on none. All ranks call it.

    Args:
        parts: What the rank has.
        extra: The settings.

    Returns:
        The transfers and the pools.

    Raises:
        UnsupportedError: Something is not supported, here or on another rank.
        LayoutError: The tensors of a pool do not fit the model.
        SettingsError: The file of copy settings is wrong.
        ValueError: A setting is wrong.
    """
    require_known(parts.params)
    ranks = Ranks(parts.params)
    own_salt = ranks.of_first(token_hex(16))
    # From here on a rank may fail alone. The others would wait for the offloads that it does not begin.
    try:
        transfers, pools = _opened(parts, extra, ranks, own_salt)
    except Exception:
        ranks.agree(here=False)
        raise
    if not ranks.agree(here=True):
        transfers.close()
        raise UnsupportedError("another rank of this engine cannot cache anything: its own line says why")
    return transfers, pools


def _opened(
    parts: LinkerParts, extra: Mapping[str, Any], ranks: Ranks, own_salt: str
) -> tuple[Transfers, tuple[DevicePool, ...]]:
    """Does what open_transfers() does on this rank alone. `own_salt` is the same on all ranks."""
    settings, params = read_settings(extra), parts.params
    load_settings()  # the copiers read them later, where an error could not be reported once
    facts = msgspec.structs.replace(engine_facts(parts.server, params), tokens=ranks.tokens)
    pools = device_pools(params, heads_of(facts), partial(described_pools, params, parts.components), ranks.tokens[1])
    if params.attn_cp_size > 1:
        require_replicas(pools)
    engine = ServedEngine(facts, pools, [paged_cache_of(pool.group, ranks.shard) for pool in pools])
    attachment_log = AttachmentLog(log, settings.origin)
    client = open_client(settings, attachment_log, ranks.number)
    prefetch = PrefetchThread(client)
    reading = _reading(client, prefetch, settings) if ranks.reads else None
    if facts.adapters:
        log.warning("pagetier shares no pages with other engines: SGLang knows LoRA adapters by their paths only")

    def salt_of(identity: ModelIdentity, flushes: int) -> str:
        shared = identity.weights and not facts.adapters and (not flushes or settings.flush == "keep")
        return settings.salt if shared else f"{own_salt} {flushes}"

    def identified(identity: ModelIdentity) -> None:
        attachment_log.opened(lambda event: engine.describe(client.session, event, identity, salt_of(identity, 0)))

    def opened(flushes: int) -> ServedGroups | None:
        if not weights.ended:
            return None
        groups = engine.groups(client, weights.identity, salt_of(weights.identity, flushes))
        lookups = Lookups(client, groups, reading, settings, several_ranks=ranks.several)
        return ServedGroups(groups, lookups, settings.mode, is_replica=ranks.replica > 0)

    weights = weights_thread(facts, settings, identified)
    wait_for_weights(weights, ranks.number)
    streams = _streams(engine.paged[0].cache.device, parts.forward_stream)
    own = _services(ranks.number, facts, params, client, settings, prefetch)
    services = msgspec.structs.replace(own, batches=reading.batches if reading is not None else None)
    return Transfers(client, opened, services, parts.counter, ranks, streams), pools


def _reading(client: Client, thread: PrefetchThread, settings: LinkerSettings) -> Reading:
    """Returns what reads from disk and fleet. SGLang's scheduler reports its batches from now on."""
    rule = LoadOrCompute(load_modes(settings.load))
    fleet = FleetReads(client, thread, rule)
    fleet.limits = FleetLimits(settings.remote_timeout, settings.remote_least)
    measure_batches()
    return Reading(DiskReads(thread, rule), fleet, BatchTimes(rule), settings)


def _services(
    rank: int, facts: EngineFacts, params: Any, client: Client, settings: LinkerSettings, prefetch: PrefetchThread
) -> RankServices:
    """Returns what a rank does beside its transfers. On the first rank, SGLang's cache calls pagetier from now on."""
    if rank:
        return RankServices(prefetch)
    install_hooks()
    announces = params.enable_kv_cache_events
    events = sglang_events(client, settings.events_lease) if announces else None
    idle = idle_publisher() if announces else None
    by_priority = getattr(facts.server, "radix_eviction_policy", "") == "priority"
    return RankServices(prefetch, events, ReleasedHints(prefetch, by_priority=by_priority), idle)


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
