"""Opens the pages of the host pools from SGLang's configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

from pagetier.client.engines.attachment_log import AttachmentLog
from pagetier.client.engines.fleet_reads import FleetLimits
from pagetier.client.engines.sglang.engine.model import (
    heads_shard,
    heads_with_draft,
    stage_of,
    this_engine,
)
from pagetier.client.engines.sglang.engine.namespace import EngineFacts
from pagetier.client.engines.sglang.engine.served_engine import (
    ServedEngine,
    open_client,
    wait_for_weights,
    weights_thread,
)
from pagetier.client.engines.sglang.engine.settings import StorageSettings, read_storage_settings
from pagetier.client.engines.sglang.engine.version import require_known_version
from pagetier.client.engines.sglang.pools.device_pools import FULL, STATE, DevicePool, require_replicas
from pagetier.client.engines.sglang.pools.engine_groups import EngineGroup
from pagetier.client.engines.sglang.pools.host_pools import host_pools, require_layout
from pagetier.client.engines.sglang.storage.pages import StoragePages
from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.engines.weights import ModelIdentity
from pagetier.client.load_or_compute import load_modes
from pagetier.client.registration import paged_cache_of
from pagetier.kernels.layout.page_layout import Shard

log = logging.getLogger("pagetier.sglang")


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
    require_known_version()
    engine_facts = this_engine()
    settings = storage_settings(config.extra_config or {}, engine_facts)
    facts = stage_of(engine_facts, config)
    pools = host_pools(hosts, hosts[FULL].page_size, heads_with_draft(facts))
    engine = ServedEngine(facts, pools, [paged_cache_of(pool.group, _shard(config, pool)) for pool in pools])
    attachment_log = AttachmentLog(log, settings.origin)
    number = config.pp_rank or config.attn_cp_rank or config.tp_rank
    client = open_client(settings, attachment_log, number)

    @cache
    def groups_of(identity: ModelIdentity) -> Mapping[str, EngineGroup]:
        return {group.name: group for group in engine.groups(client, identity, settings.salt)}

    def identified(identity: ModelIdentity) -> None:
        if identity.weights:
            attachment_log.opened(lambda event: engine.describe(client.session, event, identity, settings.salt))

    def opened() -> Mapping[str, EngineGroup] | None:
        return groups_of(weights.identity) if weights.ended and weights.identity.weights else None

    weights = weights_thread(facts, settings, identified)
    wait_for_weights(weights, number)
    limits = FleetLimits(settings.timeout, settings.remote_least)
    return StoragePages(client, opened, limits, load_modes(settings.load), stores=not config.attn_cp_rank)


def storage_settings(extra: Mapping[str, Any], facts: EngineFacts) -> StorageSettings:
    """Returns the settings of the storage. Before it is opened, the choice of the page size asks for them.

    Args:
        extra: The configuration in `--hicache-storage-backend-extra-config`.
        facts: What the engine computes with.

    Raises:
        UnsupportedError: A flag excludes the storage, whatever the model is.
        ValueError: A setting is wrong.
    """
    settings = read_storage_settings(extra)
    if facts.adapters:
        raise UnsupportedError(
            "SGLang knows LoRA adapters by their paths only: use the linker for models with adapters"
        )
    require_layout(facts.server.hicache_mem_layout)
    return settings


def _shard(config: Any, pool: DevicePool) -> Shard:
    """Returns the share of this rank. All ranks have the same latents, so that the first one stores whole pages.

    Raises:
        UnsupportedError: The ranks of context parallelism divide this state.
    """
    if config.attn_cp_size > 1:
        require_replicas([pool])
    return Shard() if config.is_mla_model and pool.name != STATE else heads_shard()
