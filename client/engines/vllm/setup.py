"""Opens the two halves of the connector from vLLM's configuration, and rejects what is not supported."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import Any

import msgspec

from pagetier.client.async_copy.copier import open_copier
from pagetier.client.client import Client
from pagetier.client.engines.attachment_log import AttachmentLog
from pagetier.client.engines.block_groups import BlockGroup, blocks_of_page
from pagetier.client.engines.events.changes import MOST_PAGES, LocationChanges
from pagetier.client.engines.file_digests import FileDigests, user_memory
from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.engines.vllm.arriving_pages import PrefixCache
from pagetier.client.engines.vllm.draft_model import draft_model_of, weights_sources
from pagetier.client.engines.vllm.engine_log import describe_cache
from pagetier.client.engines.vllm.events import KnownPage, VllmEvents, prefix_cache_resets
from pagetier.client.engines.vllm.gpu_pages import gpu_pages_of
from pagetier.client.engines.vllm.group_kinds import cached_groups, has_every_state
from pagetier.client.engines.vllm.kv_tensors import LayerCache, kv_heads, paged_cache
from pagetier.client.engines.vllm.lora import LoraAdapters
from pagetier.client.engines.vllm.namespace import PageShape, backends_of, formats_of, namespace_of, scales_of
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.engines.vllm.pending_scheduler import PendingScheduler
from pagetier.client.engines.vllm.rank_share import check_prefill, kind_in, share_of
from pagetier.client.engines.vllm.scheduler import SchedulerHalf
from pagetier.client.engines.vllm.settings import ConnectorSettings, directions_of
from pagetier.client.engines.vllm.tier_reads import ReadLimits
from pagetier.client.engines.vllm.worker import RankGroup, WorkerHalf, Zeroing
from pagetier.client.engines.weights import ModelIdentity, started_ns
from pagetier.client.engines.weights_thread import WeightsThread
from pagetier.client.groups import Group
from pagetier.client.keys import Namespace
from pagetier.client.load_or_compute import load_modes
from pagetier.client.reconnect import LinkEvent
from pagetier.kernels.layout.transfer import PagedCache

log = logging.getLogger("vllm.pagetier")


def recompute_failed_loads(transfer: Any) -> None:
    """Lets vLLM compute what a failed load lacks; by default it ends the request.

    vLLM's scheduler reads the policy after it has made the connector. Beside other connectors it reads that of
    `MultiConnector`, which a connector cannot reach.
    """
    transfer.kv_load_failure_policy = "recompute"


def require_failure_reports(groups: Any, *, by_request: bool) -> None:
    """Raises UnsupportedError if vLLM cannot process a failed load of several groups: up to 0.29 it would end."""
    if not by_request and len(groups.kv_cache_groups) > 1:
        raise UnsupportedError("models with several groups of layers need vLLM 0.30 or later")


def seed_remark(*, seeded: bool) -> str:
    """Returns what the log says if engines share no pages, else "".

    Up to 0.29 vLLM hashes blocks with a seed that is random in each process.
    """
    if seeded or os.environ.get("PYTHONHASHSEED"):
        return ""
    return ", shared with no other engine: set PYTHONHASHSEED to the same number for all of them"


def is_switched_off(config: Any, settings: ConnectorSettings) -> bool:
    """Returns whether nothing is cached because vLLM's own prefix caching is switched off.

    vLLM switches it off for some backends, too. Answers from cached pages may then differ slightly from its own.
    """
    return settings.prefix_caching == "follow" and prefix_cache_of(config) is PrefixCache.OFF


def prefix_cache_of(config: Any) -> PrefixCache:
    """Returns whether vLLM's own prefix cache is on; vLLM leaves it open while it does not know the model yet."""
    return PrefixCache.ON if getattr(config.cache_config, "enable_prefix_caching", True) else PrefixCache.OFF


def warn_of_switch(*, switched_off: bool) -> None:
    """Warns that nothing is cached because vLLM's own prefix caching is switched off."""
    if switched_off:
        log.warning(
            "pagetier caches nothing: vLLM's own prefix caching is off;"
            ' "prefix_caching": "always" in kv_connector_extra_config overrides it'
        )


def open_worker(config: Any, groups: Any, tensors: Mapping[str, LayerCache], settings: ConnectorSettings) -> WorkerHalf:
    """Returns the worker's half of this rank.

    Args:
        config: vLLM's VllmConfig.
        groups: vLLM's KVCacheConfig.
        tensors: The cache of each layer, by name.
        settings: The connector's settings.

    Raises:
        UnsupportedError: A model or a setting is not supported.
        LayoutError: The layout of the cache cannot be copied.
    """
    _check(config)
    share = share_of(config.parallel_config)
    heads = kv_heads(config, share.heads.ranks)
    cached = cached_groups(groups)
    check_prefill(config.parallel_config, [group.kv_cache_spec for group in cached.values()])
    caches = []
    for group in cached.values():
        spec, names = group.kv_cache_spec, group.layer_names
        page_tokens = kind_in(spec, share.context).page_tokens
        if not names:
            raise UnsupportedError("a pipeline stage without layers of one of the model's kinds is not supported")
        caches.append(paged_cache([tensors[name] for name in names], spec, share.heads, heads, page_tokens))
    client = _client(settings, AttachmentLog(log, settings.origin).on_rejected)
    rank_groups = []
    for (number, group), cache in zip(cached.items(), caches, strict=True):
        namespace = namespace_of(config, group, _shape(config, number, group, cache), ModelIdentity(), "")
        rank_groups.append(RankGroup(cache, namespace, open_copier(client, cache)))
    first = share.division * len(rank_groups)
    return WorkerHalf(client, rank_groups, _events(rank_groups), _zeroing(config, rank_groups, groups), first)


def shapes_of(config: Any, groups: Any, worker: WorkerHalf) -> tuple[PageShape, ...]:
    """Returns the shapes of this worker's pages of one block, from which the scheduler chooses the blocks of a page."""
    pairs = zip(cached_groups(groups).items(), worker.rank_groups, strict=True)
    return tuple(_shape(config, number, group, rank_group.cache) for (number, group), rank_group in pairs)


def use_pages(
    worker: WorkerHalf,
    config: Any,
    groups: Any,
    shapes: Sequence[PageShape],
    identity: ModelIdentity,
    blocks: int,
) -> None:
    """Lets a worker store pages of so many blocks in the namespaces of a model; `shapes` are those of shapes_of()."""
    of_pages = [shape.of_blocks(blocks) for shape in shapes]
    worker.use_pages([shape.page for shape in of_pages])
    # Each command to store names its salt.
    worker.use_namespaces(namespaces_of(config, groups, of_pages, identity, ""))


def open_scheduler(
    config: Any, groups: Any, shapes: Sequence[PageShape], pool: Any, settings: ConnectorSettings, remark: str = ""
) -> PendingScheduler:
    """Returns the scheduler's half, which can be opened once the weights are identified.

    Args:
        config: vLLM's VllmConfig.
        groups: vLLM's KVCacheConfig.
        shapes: The shapes of pages of one block in all divisions of the ranks, on which the workers of each agree.
        pool: vLLM's BlockPool.
        settings: The connector's settings.
        remark: What the log says beside what the engine caches.

    Raises:
        UnsupportedError: The model has a group of an unknown kind.
    """
    blocks = _blocks_of_page(groups, shapes)
    shapes = tuple(shape.of_blocks(blocks) for shape in shapes)
    sources = weights_sources(config, settings.weights, started_ns())
    attachment_log = AttachmentLog(log, settings.origin)
    client = _client(settings, attachment_log.on_link)

    own_salt = token_hex(16)

    def paged_groups(identity: ModelIdentity) -> list[PagedGroup]:
        salt = settings.salt if identity.weights else own_salt
        namespaces = namespaces_of(config, groups, shapes, identity, salt)
        return _paged_groups(config, groups, shapes, namespaces, pool.hash_block_size)

    def identified(identity: ModelIdentity) -> None:
        paged, nbytes = paged_groups(identity), [shape.page.nbytes for shape in shapes]
        attachment_log.opened(lambda event: describe_cache(client.session, event, paged, nbytes, identity) + remark)

    def opened(identity: ModelIdentity) -> SchedulerHalf:
        paged = paged_groups(identity)
        private = () if identity.weights else [group.namespace for group in paged]
        events = _kv_cache_events(config, groups, client, pool, settings, paged)
        limits = ReadLimits(settings.disk_timeout, settings.fleet_limits, load_modes(settings.load))
        half = SchedulerHalf(client, paged, limits, events, private, prefix_cache_of(config))
        half.pool = pool
        if (lora := getattr(config, "lora_config", None)) is not None:
            half.adapters = LoraAdapters(FileDigests(user_memory()), started_ns(), lora)
        if settings.store == "on_eviction":
            half.gpu_pages = gpu_pages_of(config, groups, pool, half.counters)
        return half

    weights = WeightsThread(sources, FileDigests(user_memory()), log, settings.origin, identified)
    return PendingScheduler(weights, client, opened)


def namespaces_of(
    config: Any, groups: Any, shapes: Sequence[PageShape], identity: ModelIdentity, salt: str
) -> tuple[Namespace, ...]:
    """Returns the namespaces of all groups.

    Args:
        config: vLLM's VllmConfig.
        groups: vLLM's KVCacheConfig.
        shapes: The page shape of each group with pages, of one or more divisions of the ranks.
        identity: The identity of the model, which the scheduler determines.
        salt: The salt of the namespaces.
    """
    named = groups.kv_cache_groups
    return tuple(namespace_of(config, named[shape.number], shape, identity, salt) for shape in shapes)


def _paged_groups(
    config: Any, groups: Any, shapes: Sequence[PageShape], namespaces: Sequence[Namespace], hash_tokens: int
) -> list[PagedGroup]:
    strong = str(getattr(config.cache_config, "prefix_caching_hash_algo", "")).startswith("sha256")
    paged = []
    for shape, namespace in zip(shapes, namespaces, strict=True):
        group, of_block = groups.kv_cache_groups[shape.number], _kind_of_block(groups, shape)
        kind = msgspec.structs.replace(of_block, page_tokens=of_block.page_tokens * shape.blocks)
        volatile = int(getattr(group, "is_eagle_group", False))
        hashes, every = kind.page_tokens // hash_tokens, has_every_state(group.kv_cache_spec)
        paged.append(PagedGroup(kind, namespace, hashes, strong, volatile, every, shape.blocks, shape.number))
    return paged


def _blocks_of_page(groups: Any, shapes: Sequence[PageShape]) -> int:
    """Returns how many blocks form a page, in all groups and divisions of the ranks.

    Blocks that are copied as a whole are pages of their own.
    """
    if any(shape.page.tokens == 1 for shape in shapes):
        return 1
    return blocks_of_page([BlockGroup(_kind_of_block(groups, shape), shape.page.nbytes) for shape in shapes])


def _kind_of_block(groups: Any, shape: PageShape) -> Group:
    return kind_in(groups.kv_cache_groups[shape.number].kv_cache_spec, shape.context)


def announces(config: Any, settings: ConnectorSettings) -> bool:
    """Returns whether KV cache events are enabled and this engine could load what they announce."""
    wanted = getattr(config, "kv_events_config", None)
    enabled = wanted is not None and bool(wanted.enable_kv_cache_events)
    return enabled and directions_of(config.kv_transfer_config, settings).loads


def _kv_cache_events(
    config: Any, groups: Any, client: Client, pool: Any, settings: ConnectorSettings, paged: Sequence[PagedGroup]
) -> VllmEvents | None:
    """Returns the events, if any are to be announced. `paged` has the groups of all divisions of the ranks."""
    if not announces(config, settings):
        return None
    specs = {group.number: groups.kv_cache_groups[group.number].kv_cache_spec for group in paged}
    most_pages = MOST_PAGES // max(group.blocks for group in paged)  # a page is remembered with all of its blocks
    changes = LocationChanges[KnownPage](client, settings.events_lease, most_pages, len(paged) // len(specs))
    return VllmEvents(changes, specs, prefix_cache_resets(pool))


def _shape(config: Any, number: int, group: Any, cache: PagedCache) -> PageShape:
    context, backends = share_of(config.parallel_config).context, backends_of(config, group)
    layers, formats, scales = tuple(group.layer_names), formats_of(group.kv_cache_spec), scales_of(config.model_config)
    return PageShape(cache.page, backends, layers, context, formats, number=number, scales=scales)


def _client(settings: ConnectorSettings, on_link: Callable[[LinkEvent], None]) -> Client:
    client = Client(settings.socket or None, name=settings.name, on_link=on_link)
    client.wait_attached(1.0)
    return client


def _check(config: Any) -> None:
    multimodal = getattr(config.model_config, "multimodal_config", None)
    if multimodal is not None and not config.cache_config.enable_prefix_caching:
        raise UnsupportedError("multimodal models require --enable-prefix-caching, without which images have no hash")
    draft_model_of(config)


def _events(rank_groups: Sequence[RankGroup]) -> Callable[[], object]:
    """Returns a function that records an event after all work that was given to the engine's stream."""
    device = rank_groups[0].cache.cache.device
    if device == "cpu":
        return lambda: None
    return partial(_recorded, device)


def _zeroing(config: Any, rank_groups: Sequence[RankGroup], groups: Any) -> Zeroing:
    """Returns when blocks of hybrid models are zeroed on a GPU. vLLM's V1 model runner lets stores end first."""
    zeroes = rank_groups[0].cache.cache.device != "cpu" and getattr(groups, "needs_kv_cache_zeroing", True)
    before = zeroes and len(groups.kv_cache_groups) > 1 and getattr(config, "use_v2_model_runner", True)
    return Zeroing.BEFORE_STORES_END if before else Zeroing.AFTER_STORES_END


def _recorded(device: str) -> object:
    import torch

    return torch.cuda.current_stream(device).record_event()
