"""vLLM's interface, in front of the two halves. Each process has one of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole, SupportsHMA

from pagetier.client.engines.vllm.connector_metadata import ShapesMetadata, StepMetadata, StoredMetadata
from pagetier.client.engines.vllm.group_kinds import UnsupportedError
from pagetier.client.engines.vllm.messages import Orders
from pagetier.client.engines.vllm.metrics import PagetierMetrics, PagetierStats
from pagetier.client.engines.vllm.namespace import PageShape
from pagetier.client.engines.vllm.scheduler import SchedulerHalf
from pagetier.client.engines.vllm.setup import (
    open_scheduler,
    open_worker,
    read_settings,
    require_failures_told,
    require_recompute,
    shapes_of,
    warn_of_seed,
)
from pagetier.client.engines.vllm.worker import Finished, WorkerHalf
from pagetier.kernels.layout.cache_layout import LayoutError

log = logging.getLogger("vllm.pagetier")

# From 0.30 on loads that fail are told by their requests.
_BY_REQUEST: Final = hasattr(base, "KVConnectorTransferResults")


class PagetierConnector(KVConnectorBase_V1, SupportsHMA):
    """A cache beside vLLM's own: nothing fails, and nothing waits, if it is not there.

    See vLLM's KVConnectorBase_V1 for who calls what when. Where a model or a setting is not supported one line is
    logged, and vLLM computes everything as without us.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        """Raises ValueError for settings that are wrong."""
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._config, self._groups = vllm_config, kv_cache_config
        self._settings = read_settings(vllm_config.kv_transfer_config.kv_connector_extra_config)
        require_recompute(vllm_config.kv_transfer_config)
        if role is KVConnectorRole.SCHEDULER:
            warn_of_seed(seeded=_BY_REQUEST)
        self._hash_tokens = 0
        self._scheduler: SchedulerHalf | None = None
        self._worker: WorkerHalf | None = None
        self._shapes: tuple[PageShape, ...] = ()
        self._finished: Finished | None = None

    @property
    def requires_kv_delivery(self) -> bool:
        """A page that is not stored is a miss, no more."""
        return False

    # --- the workers' side -------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """The engine's cache is there."""
        try:
            require_failures_told(self._groups, by_request=_BY_REQUEST)
            self._worker = open_worker(self._config, self._groups, kv_caches, self._settings)
        except Exception as error:  # noqa: BLE001 - an unforeseen model must not keep vLLM from starting
            _say_nothing_is_cached(error)
            return
        self._shapes = shapes_of(self._config, self._groups, self._worker)

    def get_handshake_metadata(self) -> ShapesMetadata | None:
        """For the scheduler."""
        return ShapesMetadata(self._shapes) if self._shapes else None

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """Before anything of the step is written."""
        if self._worker is not None:
            self._worker.make_room(kv_connector_metadata.orders)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """The step's orders have come. On the CPU loads begin here: 0.32 calls start_load_kv behind the forward pass.

        There that pass is over then, and what was loaded would be told of one step later. On a GPU it has
        only been enqueued, and who loads gets in nobody's way.
        """
        super().bind_connector_metadata(connector_metadata)
        self.handle_preemptions(connector_metadata)
        if self._worker is not None and self._worker.on_host:
            self._worker.load(self._orders.loads)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Loads go on by themselves."""
        if self._worker is not None and not self._worker.on_host:
            self._worker.load(self._orders.loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """No request is computed before it is loaded."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """All layers are stored at the end of the step."""

    def wait_for_save(self) -> None:
        """Begins the stores."""
        if self._worker is not None and self._kv_transfer_config.is_kv_producer:
            self._worker.store(self._orders.stores)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Requests whose stores, and whose loads have ended."""
        if self._worker is None:
            return None, None
        self._finished = self._worker.finished(self._get_connector_metadata().idle)
        return set(self._finished.stored), set(self._finished.loaded)

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """The same with failures, from 0.30 on."""
        stored, loaded = self.get_finished(finished_req_ids)
        failed = set(self._finished.failed) if self._finished is not None else set()
        return base.KVConnectorTransferResults(stored or set(), loaded or set(), failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Up to 0.29 failures are told by blocks."""
        if self._finished is None or _BY_REQUEST:
            return set()
        return set(self._finished.blocks)

    def build_connector_worker_meta(self) -> StoredMetadata | None:
        """What became of stores that somebody asks about."""
        told = self._worker.told() if self._worker is not None else {}
        return StoredMetadata({number: [pages] for number, pages in told.items()}) if told else None

    def shutdown(self) -> None:
        """Lets go of everything."""
        if self._worker is not None:
            self._worker.close()
        if self._scheduler is not None:
            self._scheduler.close()

    # --- the scheduler's side ----------------------------------------------------------------------------------

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Says how many tokens a hash is of."""
        self._hash_tokens = gpu_block_pool.hash_block_size

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        """What the workers said of their pages; they have to agree, and a load is over when all have ended it."""
        told = [its.shapes for its in metadata.values() if isinstance(its, ShapesMetadata)]
        shapes, ranks = set(told), self._config.parallel_config.tensor_parallel_size
        if 0 < len(told) < ranks:
            log.warning("pagetier caches nothing: %d of %d ranks can not", ranks - len(told), ranks)
        elif len(shapes) > 1:
            log.warning("pagetier caches nothing: the ranks have pages of different layouts")
        elif shapes and (agreed := shapes.pop()):
            self._open_scheduler(agreed)

    def _open_scheduler(self, shapes: tuple[PageShape, ...]) -> None:
        try:
            self._scheduler = open_scheduler(self._config, self._groups, shapes, self._hash_tokens, self._settings)
        except Exception as error:  # noqa: BLE001 - as above
            _say_nothing_is_cached(error)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How much more can be loaded. No request is computed in a step that loads it: that spoils recurrent state."""
        skips = getattr(request, "skip_reading_prefix_cache", False) or not self._kv_transfer_config.is_kv_consumer
        if self._scheduler is None or skips:
            return 0, False
        tokens = self._scheduler.matched(request, num_computed_tokens)
        return tokens, bool(tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The request was given blocks."""
        if self._scheduler is not None:
            self._scheduler.allocated(request, blocks.blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        """The step's orders."""
        orders = Orders() if self._scheduler is None else self._scheduler.build(scheduler_output)
        return StepMetadata(orders, not scheduler_output.total_num_scheduled_tokens)

    def update_connector_output(self, connector_output: Any) -> None:
        """What the workers said at the end of a step."""
        if self._scheduler is None:
            return
        blocks = getattr(connector_output, "invalid_block_ids", None) or frozenset()
        self._scheduler.failed(getattr(connector_output, "failed_recving", None) or (), blocks)
        self._scheduler.loaded(connector_output.finished_recving or ())
        told = getattr(connector_output, "kv_connector_worker_meta", None)
        if told is not None and self._scheduler.announcer is not None:
            self._scheduler.announcer.told(told.told, self._config.parallel_config.world_size)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """As below, of the only group."""
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Whether the blocks are needed a little longer."""
        held = self._scheduler is not None and self._scheduler.finished(request, block_ids)
        return held and self._kv_transfer_config.is_kv_producer, None

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[Any, int]:
        """Which tier the tokens come from, from 0.32 on."""
        from vllm.v1.metrics.cache_hit_source import CacheHitSource

        if self._scheduler is None:
            return {}
        memory = self._scheduler.from_memory(request, num_external_tokens)
        told = {CacheHitSource.HOST: memory, CacheHitSource.DISK: num_external_tokens - memory}
        return {source: tokens for source, tokens in told.items() if tokens}

    def get_kv_connector_stats(self) -> PagetierStats | None:
        """Counts since the last call."""
        half = self._scheduler or self._worker
        counts = half.tally.taken() if half is not None else {}
        return PagetierStats(counts) if counts else None

    def reset_cache(self) -> bool | None:
        """The weights may have changed: what was stored before is not this engine's any more."""
        if self._scheduler is not None:
            self._scheduler.renew()
        return True

    def take_events(self) -> Iterable[Any]:
        """Pages that are stored since the last call."""
        announcer = self._scheduler.announcer if self._scheduler is not None else None
        return announcer.taken() if announcer is not None else ()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> PagetierStats:
        """What get_kv_connector_stats() said, in another process."""
        return PagetierStats(data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]
    ) -> PagetierMetrics:
        """Counters at /metrics."""
        return PagetierMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @property
    def _orders(self) -> Orders:
        orders: Orders = self._get_connector_metadata().orders
        return orders


def _say_nothing_is_cached(error: Exception) -> None:
    foreseen = isinstance(error, (UnsupportedError, LayoutError))
    log.warning("pagetier caches nothing: %s", error if foreseen else repr(error))
    log.debug("pagetier", exc_info=error)
