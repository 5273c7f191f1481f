"""Implements vLLM's connector interface. Each process has one connector, with the scheduler's or the worker's half."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from vllm.distributed.kv_events import EventPublisherFactory, KVEventBatch
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole, SupportsHMA

from pagetier.client.engines.events.idle_publisher import IdlePublisher, use_next_publisher
from pagetier.client.engines.unsupported import reported_as_unsupported
from pagetier.client.engines.vllm.connector_metadata import (
    NO_REPORT,
    NOTHING_TO_DO,
    ShapesMetadata,
    StepMetadata,
    WorkerReport,
    agreed_shapes,
)
from pagetier.client.engines.vllm.engine_log import route_logs
from pagetier.client.engines.vllm.messages import NO_COMMANDS, NOTHING_FINISHED, StepCommands, StoreCommand
from pagetier.client.engines.vllm.metrics import PagetierMetrics, PagetierStats, hit_sources
from pagetier.client.engines.vllm.namespace import PageShape
from pagetier.client.engines.vllm.pending_scheduler import PendingScheduler
from pagetier.client.engines.vllm.rank_share import prefill_ranks, ranks_of, share_of
from pagetier.client.engines.vllm.scheduler import SchedulerHalf
from pagetier.client.engines.vllm.settings import SLEEP_NEEDS, cannot_sleep, directions_of, read_settings
from pagetier.client.engines.vllm.setup import (
    announces,
    is_switched_off,
    open_scheduler,
    open_worker,
    recompute_failed_loads,
    require_failure_reports,
    seed_remark,
    shapes_of,
    use_pages,
    warn_of_switch,
)
from pagetier.client.engines.vllm.worker import WorkerHalf
from pagetier.client.engines.weights import ModelIdentity
from pagetier.shm import clock

log = logging.getLogger("vllm.pagetier")

_IDENTIFY_S: Final = 1.0  # by which the start of the engine may be delayed to identify its weights
_FOLLOWS_SLEEP: Final = hasattr(KVConnectorBase_V1, "supports_sleep_mode")  # from 0.33 on
_BY_REQUEST: Final = hasattr(base, "KVConnectorTransferResults")  # how failed loads are reported from 0.30 on


class PagetierConnector(KVConnectorBase_V1, SupportsHMA):
    """A cache beside vLLM's own. Without a daemon nothing is loaded, and no request fails or waits for it.

    vLLM's KVConnectorBase_V1 documents which process calls which method when. If a model or a setting is not supported,
    one line is logged and vLLM computes everything as without this connector.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        """Reads the settings. Raises ValueError if they are invalid."""
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._config, self._groups = vllm_config, kv_cache_config
        self._settings = read_settings(vllm_config.kv_transfer_config.kv_connector_extra_config)
        recompute_failed_loads(vllm_config.kv_transfer_config)
        self._directions = directions_of(vllm_config.kv_transfer_config, self._settings)
        route_logs()
        sleepless = cannot_sleep(vllm_config, connectors_follow=_FOLLOWS_SLEEP)
        self._off = sleepless or is_switched_off(vllm_config, self._settings)
        self._idle = IdlePublisher(lambda events: KVEventBatch(ts=clock.date(), events=events), log)
        if role is KVConnectorRole.SCHEDULER:
            warn_of_switch(switched_off=self._off and not sleepless)
            if sleepless:
                log.warning("pagetier caches nothing: --enable-sleep-mode is set, %s", SLEEP_NEEDS)
            if announces(vllm_config, self._settings):
                use_next_publisher(EventPublisherFactory, self._idle)
        self._asked_to_open = False
        self._pool: Any = None
        self._pending: PendingScheduler | None = None
        self._scheduler: SchedulerHalf | None = None
        self._identity, self._chosen = ModelIdentity(), (ModelIdentity(), 1)
        self._worker: WorkerHalf | None = None
        self._sleeps = self._had_sessions = False
        self._shapes: tuple[PageShape, ...] = ()
        self._unsent: list[ShapesMetadata] = []
        self._report: WorkerReport | None = None
        self._loaded_groups: tuple[int, ...] = ()
        self._finished = NOTHING_FINISHED
        self._step = NOTHING_TO_DO
        self._unbegun: tuple[StoreCommand, ...] = ()

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """True: no copy is in progress while the cache has no memory. vLLM calls it from 0.33 on."""
        return True

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a page that is not stored is only a miss."""
        return False

    # --- the workers' side -------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Opens the worker's half for the engine's cache."""
        if self._off:
            return
        with reported_as_unsupported(log):
            require_failure_reports(self._groups, by_request=_BY_REQUEST)
            self._worker = open_worker(self._config, self._groups, kv_caches, self._settings)
            self._shapes = shapes_of(self._config, self._groups, self._worker)
            self._unsent = [ShapesMetadata(self._shapes, share_of(self._config.parallel_config).division)]

    def unregister_kv_caches(self) -> None:
        """Ends all copies before vLLM takes the memory of the cache away. May be called repeatedly.

        Raises:
            RuntimeError: A copy does not end, so that the engine must not sleep.
        """
        self._store()
        if self._worker is not None:
            self._sleeps = True
            if not self._worker.suspend():
                raise RuntimeError("the engine cannot sleep: copies between its cache and pagetier do not end")

    def restore_kv_caches(self) -> None:
        """Copies again, once the cache has memory. May be called repeatedly."""
        if self._worker is not None and self._sleeps:
            self._sleeps = False
            self._worker.resume()

    def get_handshake_metadata(self) -> ShapesMetadata | None:
        """Returns the page shapes for the scheduler, or None if they come with this worker's first message."""
        # vLLM has one place for the handshakes of the ranks that divide the computation of a prompt.
        return next(iter(self._unsent), None) if prefill_ranks(self._config.parallel_config) == 1 else None

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """Waits for or cancels the stores that read blocks which this step writes, before the step is computed.

        With drafts, vLLM's V1 model runner calls wait_for_save() only in the last stage of a pipeline. In the others
        the stores of the step before begin here.
        """
        if self._unbegun:
            self._store()
        commands: StepCommands = kv_connector_metadata.commands
        if commands.written and self._worker is not None:
            self._worker.end_overwritten_stores(commands)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """Receives the commands of the step.

        On the CPU loads begin here: 0.32 calls start_load_kv after the forward pass, which is complete there by then,
        so that the loads would be reported one step later. On a GPU the pass has only been enqueued.
        """
        super().bind_connector_metadata(connector_metadata)
        self._step = connector_metadata
        if connector_metadata is NOTHING_TO_DO:
            return
        self.handle_preemptions(connector_metadata)
        commands: StepCommands = connector_metadata.commands
        self._unbegun = commands.stores
        if commands.loads or commands.stores:
            self._use_pages(connector_metadata)
        if commands.loads and self._worker is not None and self._worker.on_host:
            self._worker.load(commands.loads)

    def _use_pages(self, metadata: StepMetadata) -> None:
        """Stores pages as the scheduler chooses: their number of blocks, and the model that it has identified."""
        if self._worker is not None and (chosen := (metadata.identity, metadata.page_blocks)) != self._chosen:
            self._chosen = chosen
            use_pages(self._worker, self._config, self._groups, self._shapes, *chosen)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begins the loads on a GPU; they complete in the background."""
        if (loads := self._step.commands.loads) and self._worker is not None and not self._worker.on_host:
            self._worker.load(loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Does nothing: no request is computed before it is loaded."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Does nothing: all layers are stored at the end of the step."""

    def wait_for_save(self) -> None:
        """Begins the stores of the step, but not of an idle one: up to 0.30 vLLM does not call this then."""
        if self._unbegun and not self._step.idle:
            self._store()

    def _store(self) -> None:
        stores, self._unbegun = self._unbegun, ()
        if stores and self._worker is not None and self._directions.stores:
            self._worker.store(stores)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Returns the requests whose stores have ended and the requests whose loads have ended."""
        if self._worker is None:
            return None, None
        if self._step.idle:
            self._store()
            self._report = WorkerReport(idle=True)
        finished = self._finished = self._worker.finished(self._step.idle)
        if finished.copied:
            self._report = WorkerReport(copied=finished.copied, idle=self._step.idle)
        return set(finished.stored), set(finished.loaded)

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Returns the same as get_finished(), and the failed loads. vLLM calls it from 0.30 on."""
        stored, loaded = self.get_finished(finished_req_ids)
        if self._finished is NOTHING_FINISHED:
            return base.KVConnectorTransferResults()
        return base.KVConnectorTransferResults(stored or set(), loaded or set(), set(self._finished.failed))

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Returns the blocks of failed loads, which vLLM reads up to 0.29; later it is empty."""
        return set() if _BY_REQUEST else set(self._finished.blocks)

    def build_connector_worker_meta(self) -> WorkerReport | None:
        """Returns what this worker reports of the step, after get_finished(); None for most steps."""
        if self._report is None and not self._unsent:
            return None  # as in most steps
        report = self._report or WorkerReport()
        report.shapes, self._report, self._unsent = self._unsent, None, []
        return report

    def shutdown(self) -> None:
        """Closes both halves."""
        self._idle.stop()
        if self._worker is not None:
            self._worker.close()
        for half in (self._pending, self._scheduler):
            if half is not None:
                half.close()

    # --- the scheduler's side ----------------------------------------------------------------------------------

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Receives the blocks of vLLM's own cache."""
        self._pool = gpu_block_pool

    def set_xfer_handshake_metadata(self, metadata: Mapping[Any, Any]) -> None:
        """Receives the page shapes of the workers, which beside another connector come with their first messages."""
        self._use_shapes([one for one in metadata.values() if isinstance(one, ShapesMetadata)])

    def _use_shapes(self, reports: Sequence[ShapesMetadata]) -> None:
        """Opens the scheduler's half, once, if the ranks agree. A load has ended when all ranks have ended it."""
        if reports and not self._off and not self._asked_to_open:
            self._asked_to_open = True
            if agreed := agreed_shapes(reports, ranks_of(self._config.parallel_config)):
                self._open_scheduler(agreed)

    set_xfer_handshake_metadata_pp_aware = set_xfer_handshake_metadata  # of several pipeline stages, from 0.32 on

    def _open_scheduler(self, shapes: tuple[PageShape, ...]) -> None:
        self._loaded_groups = tuple(dict.fromkeys(shape.number for shape in shapes))
        with reported_as_unsupported(log):
            remark = seed_remark(seeded=_BY_REQUEST)
            self._pending = open_scheduler(self._config, self._groups, shapes, self._pool, self._settings, remark)
            self._pending.wait(_IDENTIFY_S)
            self._open_if_identified()

    def _open_if_identified(self) -> None:
        """Opens the scheduler's half once the weights are identified. Until then nothing is loaded and stored."""
        if (pending := self._pending) is None or not pending.ready:
            return
        self._pending, self._identity = None, pending.identity
        with reported_as_unsupported(log):
            self._scheduler = half = pending.open()
            half.stores, half.caches_sessions = self._directions.stores, _caches_sessions(self._config, self._groups)
            half.trusts_hits = half.caches_sessions or not self._had_sessions
            half.loaded_first.is_needed = not _reaches_loaded()

    def on_new_request(self, request: Any) -> None:
        """Reads pages on disk and in the fleet while a request waits for its turn."""
        self._open_if_identified()
        if self._scheduler is None:
            self._had_sessions |= getattr(request, "resumable", False)
        elif self._directions.loads:
            self._scheduler.arrived(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Returns how many more tokens can be loaded, and whether the load is asynchronous.

        It always is: no request is computed in a step that loads it, because that would corrupt recurrent state.
        """
        self._open_if_identified()
        if (half := self._scheduler) is None or half.sleeps(request, num_computed_tokens):
            return (0 if half is None else None), False
        half.expect(request, num_computed_tokens)
        if half.loaded_first.decide_wait(request.request_id):
            return None, False
        loads = self._directions.loads and not getattr(request, "skip_reading_prefix_cache", False)
        tokens = half.matched(request, num_computed_tokens) if loads else 0
        half.loaded_first.answered(request.request_id, tokens)
        return tokens, bool(tokens)

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        """Returns vLLM's groups that a load fills; vLLM computes the others behind it. It calls this from 0.32 on."""
        return self._loaded_groups

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Receives the blocks that a request was given."""
        if self._scheduler is not None:
            self._scheduler.allocated(request, blocks.blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        """Returns the commands of the step."""
        half, idle = self._scheduler, not scheduler_output.total_num_scheduled_tokens
        commands, blocks = (NO_COMMANDS, 1) if half is None else (half.build(scheduler_output), half.page_blocks)
        if commands is NO_COMMANDS and not idle:
            return NOTHING_TO_DO
        return StepMetadata(commands, idle, self._identity, blocks)

    def update_connector_output(self, connector_output: Any) -> None:
        """Processes the reports of the workers at the end of a step."""
        report = getattr(connector_output, "kv_connector_worker_meta", None) or NO_REPORT
        self._use_shapes(report.shapes)
        if self._scheduler is None:
            return
        steps = self._scheduler.steps
        (steps.end_idle if report.idle else steps.end)(clock.now())
        self._scheduler.reads.report(report.copied)
        blocks = getattr(connector_output, "invalid_block_ids", None) or frozenset()
        self._scheduler.failed(getattr(connector_output, "failed_recving", None) or (), blocks)
        self._scheduler.loaded(connector_output.finished_recving or (), connector_output.finished_sending or ())

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Implements request_finished_all_groups() for models with one group."""
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Returns whether the blocks are needed until a last store has ended."""
        return self._scheduler is not None and self._scheduler.finished(request, block_ids), None

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[Any, int]:
        """Returns the number of tokens from each tier. vLLM calls it from 0.32 on."""
        return hit_sources(self._scheduler.by_tier(request, num_external_tokens)) if self._scheduler is not None else {}

    def get_kv_connector_stats(self) -> PagetierStats | None:
        """Returns the counts since the last call, or None if nothing was counted."""
        counts = half.counters.taken() if (half := self._scheduler or self._worker) is not None else {}
        return PagetierStats(counts) if counts else None

    def reset_cache(self) -> bool | None:
        """Makes everything that was stored before unreachable for this engine, because its weights may have changed."""
        for half in (self._pending, self._scheduler):
            if half is not None:
                half.renew()
        return True

    def take_events(self) -> Iterable[Any]:
        """Returns the events of the pages that came and left since the last call."""
        if self._scheduler is None or (events := self._scheduler.events) is None:
            return ()
        self._idle.start(events)
        return events.taken()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> PagetierStats:
        """Returns the statistics that get_kv_connector_stats() returned in another process."""
        return PagetierStats(data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]
    ) -> PagetierMetrics:
        """Returns the counters for /metrics."""
        return PagetierMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


def _reaches_loaded() -> bool:
    """Returns whether vLLM looks at requests that hold blocks before it looks at other waiting ones, as 0.32 does."""
    from vllm.v1.core.sched.scheduler import Scheduler

    return "kv_holding_waiting" in Scheduler.__init__.__code__.co_names


def _caches_sessions(config: Any, groups: Any) -> bool:
    """Returns whether vLLM continues a session where its tokens were computed, and with their hashes.

    Up to 0.31 it keeps the hash of the token that it drops, and up to 0.32 it counts drafts behind a stop as computed.
    Recurrent state has such drafts and the token of a step that was begun before the stop in it, with all versions.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    hashed, counted = (
        getattr(getattr(Scheduler, method, None), "__code__", None)
        for method in ("_update_request_as_session", "_update_request_with_output")
    )
    if hashed is None or counted is None or "block_hashes" not in hashed.co_names:
        return False
    drafts = config.speculative_config is not None
    if getattr(groups, "has_mamba_layers", False):
        return not (drafts or config.scheduler_config.async_scheduling)
    return not drafts or "num_computed_tokens" in counted.co_names
