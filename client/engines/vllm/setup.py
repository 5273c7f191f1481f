"""From vLLM's configuration to the two halves, and what is refused on the way."""

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
from pagetier.client.engines.vllm.group_kinds import UnsupportedError, kind_of
from pagetier.client.engines.vllm.kv_events import Announcer
from pagetier.client.engines.vllm.kv_tensors import LayerCache, paged_cache
from pagetier.client.engines.vllm.namespace import PageShape, backends_of, is_known, namespace_of
from pagetier.client.engines.vllm.request_state import PagedGroup
from pagetier.client.engines.vllm.scheduler import SchedulerHalf
from pagetier.client.engines.vllm.worker import RankGroup, WorkerHalf, Zeroing
from pagetier.kernels.layout.page_layout import Shard
from pagetier.kernels.layout.transfer import PagedCache


class ConnectorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Raises ValueError for what is out of bounds.

    socket: of the daemon; empty: where it usually is. disk_deadline: seconds that a request may wait for pages on disk
    before it is computed instead; 0: it never does. salt: engines with different ones share nothing. name: what
    administrators see of this engine; empty: the program's.
    """

    socket: str = ""
    disk_deadline: float = 2.0
    salt: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.disk_deadline <= 3600:
            raise ValueError(f"disk_deadline = {self.disk_deadline}: seconds from 0 to 3600")


def read_settings(given: Mapping[str, Any]) -> ConnectorSettings:
    """Raises ValueError for an unknown key or a value of another kind; the message names it."""
    try:
        return msgspec.convert(dict(given), ConnectorSettings)
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"kv_connector_extra_config: {error}") from error


log = logging.getLogger("vllm.pagetier")


def require_recompute(transfer: Any) -> None:
    """Raises ValueError unless what can not be loaded is computed instead of failing the request."""
    policy = getattr(transfer, "kv_load_failure_policy", "recompute")
    if policy != "recompute":
        raise ValueError(
            f'kv_load_failure_policy is "{policy}": a page that can not be loaded would fail its request;'
            ' add "kv_load_failure_policy": "recompute" to --kv-transfer-config'
        )


def require_failures_told(groups: Any, *, by_request: bool) -> None:
    """Raises UnsupportedError where vLLM could not be told of a load that failed: up to 0.29 it ends over that."""
    if not by_request and len(groups.kv_cache_groups) > 1:
        raise UnsupportedError("models with several groups of layers need vLLM 0.30 or later")


def warn_of_seed(*, seeded: bool) -> None:
    """Up to 0.29 vLLM hashes blocks with a seed of each process's own, and no other process finds what is stored."""
    if not seeded and not os.environ.get("PYTHONHASHSEED"):
        log.warning("pagetier: set PYTHONHASHSEED to the same number for all engines, or they share nothing")


def open_worker(config: Any, groups: Any, tensors: Mapping[str, LayerCache], settings: ConnectorSettings) -> WorkerHalf:
    """Of this rank. Raises UnsupportedError and LayoutError for a model or a setting that is not cached."""
    _check(config)
    shard = Shard(_rank(config), config.parallel_config.tensor_parallel_size)
    heads = config.model_config.get_total_num_kv_heads()
    client = _client(settings)
    lanes = []
    for group in groups.kv_cache_groups:
        spec, names = group.kv_cache_spec, group.layer_names
        kind_of(spec)
        cache = paged_cache([tensors[name] for name in names], spec, shard, heads)
        namespace = namespace_of(config, group, _shape(config, group, cache), settings.salt)
        lanes.append(RankGroup(cache, namespace, open_copier(client, cache)))
    return WorkerHalf(client, lanes, _events(lanes), _zeroing(lanes, groups))


def shapes_of(config: Any, groups: Any, worker: WorkerHalf) -> tuple[PageShape, ...]:
    """What the scheduler has to know of this worker's pages."""
    return tuple(
        _shape(config, group, lane.cache) for group, lane in zip(groups.kv_cache_groups, worker.lanes, strict=True)
    )


def open_scheduler(
    config: Any, groups: Any, shapes: Sequence[PageShape], hash_tokens: int, settings: ConnectorSettings
) -> SchedulerHalf:
    """With what the workers said of their pages."""
    salt = _salt(config.model_config, settings)
    strong = str(getattr(config.cache_config, "prefix_caching_hash_algo", "")).startswith("sha256")
    paged = []
    for group, shape in zip(groups.kv_cache_groups, shapes, strict=True):
        kind = kind_of(group.kv_cache_spec)
        namespace = namespace_of(config, group, shape, salt)
        paged.append(PagedGroup(kind, namespace, kind.page_tokens // hash_tokens, strong))
    private = () if salt == settings.salt else [group.namespace for group in paged]
    return SchedulerHalf(_client(settings), paged, settings.disk_deadline, _announcer(config), private)


def _salt(model: Any, settings: ConnectorSettings) -> str:
    """Weights that can not be told from others are nobody else's."""
    if is_known(model):
        return settings.salt
    log.warning(
        "pagetier shares nothing with other engines: no file and no commit says which weights %s has", model.model
    )
    return token_hex(16)


def _announcer(config: Any) -> Announcer | None:
    """For who listens to what the cache holds."""
    events = getattr(config, "kv_events_config", None)
    wanted = events is not None and events.enable_kv_cache_events and config.kv_transfer_config.is_kv_producer
    return Announcer() if wanted else None


def _shape(config: Any, group: Any, cache: PagedCache) -> PageShape:
    return PageShape(cache.page.layout, cache.page.nbytes, backends_of(config, group))


def _client(settings: ConnectorSettings) -> Client:
    client = Client(settings.socket or None, name=settings.name)
    client.wait_attached(1.0)
    return client


def _check(config: Any) -> None:
    parallel = config.parallel_config
    if parallel.pipeline_parallel_size > 1:
        raise UnsupportedError("pipeline parallelism is not supported yet")
    if max(getattr(parallel, f"{kind}_context_parallel_size", 1) for kind in ("decode", "prefill")) > 1:
        raise UnsupportedError("context parallelism is not supported yet")
    multimodal = getattr(config.model_config, "multimodal_config", None)
    if multimodal is not None and not config.cache_config.enable_prefix_caching:
        raise UnsupportedError("images have no hash of their own without --enable-prefix-caching")
    speculative = config.speculative_config
    if speculative is not None and getattr(speculative, "method", None) not in ("ngram", "suffix"):
        raise UnsupportedError("draft models are not supported yet")


def _rank(config: Any) -> int:
    parallel = config.parallel_config
    return int(parallel.rank) % int(parallel.tensor_parallel_size)


def _events(lanes: Sequence[RankGroup]) -> Callable[[], object]:
    """How an event behind all that the engine's stream was given is recorded."""
    device = lanes[0].cache.cache.device
    if device == "cpu":
        return lambda: None
    return partial(_recorded, device)


def _zeroing(lanes: Sequence[RankGroup], groups: Any) -> Zeroing:
    """The model runner for GPUs zeroes blocks of hybrid models before it says what it will write."""
    zeroes = lanes[0].cache.cache.device != "cpu" and getattr(groups, "needs_kv_cache_zeroing", True)
    return Zeroing.AHEAD_OF_US if zeroes and len(lanes) > 1 else Zeroing.BEHIND_US


def _recorded(device: str) -> object:
    import torch

    return torch.cuda.current_stream(device).record_event()
