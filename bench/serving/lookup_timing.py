"""Times what vLLM's scheduler waits for: get_num_new_matched_tokens of pagetier and of vLLM's native offloading.

Both are the real connectors' scheduler halves in this process, with real requests; nothing is computed or copied.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from daemon_setup import Stage, settle
from measure import at_least, time_of
from serving.confidence import Claim, Spread, ratios, spread
from serving.model import VOCABULARY, llama

TOKENS, BLOCK = 131_072, 16
PAGES = TOKENS // BLOCK
PAGE = 4096
ROUNDS = 41
AGAIN = 5  # repeated look-ups of a request
SEVEN_TIMES = Claim(at_least(7), "value")


class Half(Protocol):
    """The scheduler's half of a connector, and its cache."""

    connector: Any

    def fill(self, request: Any) -> None:
        """Stores all pages of the request."""


class Ours:
    """pagetier's half, with a daemon."""

    def __init__(self, model: Path, stage: Stage) -> None:
        from pagetier.client.engines.vllm import PagetierConnector
        from pagetier.client.engines.vllm.connector_metadata import ShapesMetadata
        from pagetier.client.engines.vllm.namespace import PageShape
        from pagetier.kernels.layout.page_layout import PageLayout, Rows

        extra = {"socket": str(stage.socket)}
        config = config_of(model, "PagetierConnector", extra, kv_connector_module_path="pagetier.client.engines.vllm")
        groups, shape = groups_of(config), PageShape(PageLayout(BLOCK, ((Rows("k", "uint8", 1, PAGE // BLOCK),),)))
        self._stage = stage
        self.connector = PagetierConnector(config, scheduler_role(), groups)
        self.connector.bind_gpu_block_pool(SimpleNamespace(hash_block_size=BLOCK))
        self.connector.set_xfer_handshake_metadata({0: ShapesMetadata((shape,))})
        half = self.connector._scheduler
        assert half is not None, "the weights of the model are not identified"
        self._space = half._groups[0].namespace

    def fill(self, request: Any) -> None:
        """Stores pages of one frame without content."""
        with self._stage.client() as client:
            stored = client.reserve(self._space.keys_of_hashes(request.block_hashes), PAGE).publish().stored
        assert stored == PAGES


class Native:
    """vLLM's native half, with the manager of its cache in host memory."""

    def __init__(self, model: Path) -> None:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

        config = config_of(model, "OffloadingConnector", {"cpu_bytes_to_use": 1 << 30})
        self.connector = OffloadingConnector(config, scheduler_role(), groups_of(config))

    def fill(self, request: Any) -> None:
        """Marks everything as stored."""
        from vllm.v1.kv_offload.base import ReqContext, make_offload_key

        manager, context = self.connector.scheduler.manager, ReqContext("filling")
        keys = [make_offload_key(one, 0) for one in request.block_hashes]
        manager.on_new_request(context)
        assert len(manager.prepare_store(keys, context).keys_to_store) == PAGES
        manager.complete_store(keys, context)
        manager.on_request_finished(context)


def scheduler_role() -> Any:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    return KVConnectorRole.SCHEDULER


def config_of(model: Path, connector: str, extra: dict[str, Any], **more: Any) -> Any:
    """Returns the whole configuration of an engine with a connector."""
    from vllm.engine.arg_utils import EngineArgs

    transfer = {
        "kv_connector": connector,
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    } | more
    arguments = EngineArgs(
        model=str(model),
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        block_size=BLOCK,
        max_model_len=2 * TOKENS,
        enable_prefix_caching=True,
        kv_transfer_config=transfer,
    )
    return arguments.create_engine_config()


def groups_of(config: Any) -> Any:
    """Returns one group of full attention, as vLLM makes it for the model."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor

    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=4, head_size=64, dtype=torch.bfloat16)
    names, blocks = ["model.layers.0.self_attn.attn"], 2 * PAGES
    size = spec.page_size_bytes * blocks
    placed = KVCacheTensor(size, names, layer_stride=size, block_stride=spec.page_size_bytes)
    return KVCacheConfig(blocks, [placed], [KVCacheGroupSpec(names, spec)], hash_block_size=BLOCK)


class Requests:
    """Requests of vLLM, all with the same prompt."""

    def __init__(self) -> None:
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        numbers = random.Random(1)
        self._prompt = [numbers.randrange(10, VOCABULARY) for _ in range(TOKENS)]
        self._made = 0

    def one(self) -> Any:
        """Returns another request."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        self._made += 1
        sampling = SamplingParams(max_tokens=1)
        return Request(f"request-{self._made}", list(self._prompt), sampling, None, block_hasher=self._hasher)


def measure() -> Iterator[Spread]:
    """Measures both halves with the same requests, in turn."""
    sizes = ["--arena-size", str(4 * PAGES * PAGE), "--set", f"arena.frame_size={PAGE}"]
    with tempfile.TemporaryDirectory(prefix="pagetier-bench-") as folder, Stage(*sizes) as stage:
        stage.client().close()
        model = llama(Path(folder) / "model", hidden=256, layers=1, length=2 * TOKENS)
        ours, native, requests = Ours(model, stage), Native(model), Requests()
        filling = requests.one()
        for half in (ours, native):
            half.fill(filling)
        settle()
        yield from _results(ours, native, requests)
        ours.connector.shutdown()


def _results(ours: Half, native: Half, requests: Requests) -> Iterator[Spread]:
    rounds = [_round((ours, native), requests.one(), turned=bool(at % 2)) for at in range(ROUNDS + 2)][2:]
    for at, name in enumerate(("first", "again")):
        mine, theirs = ([one[which][at] for one in rounds] for which in (0, 1))
        medians = "; ".join(
            f"{who} {1e6 * statistics.median(taken):.1f} us" for who, taken in (("pagetier", mine), ("native", theirs))
        )
        yield spread(f"matched_{TOKENS}_{name}_native_over_pagetier", ratios(theirs, mine), SEVEN_TIMES, medians)


def _round(halves: tuple[Half, Half], request: Any, *, turned: bool) -> list[tuple[float, float]]:
    """Returns for each half how long the first call and a later one take."""
    taken = [(0.0, 0.0), (0.0, 0.0)]
    for which in (1, 0) if turned else (0, 1):
        connector = halves[which].connector
        connector.on_new_request(request)
        ask = partial(_asked, connector, request)
        first = time_of(ask)
        taken[which] = first, statistics.median(time_of(ask) for _ in range(AGAIN))
    for half in halves:
        _aborted(half.connector, request)
    return taken


def _aborted(connector: Any, request: Any) -> None:
    """Aborts a request like the scheduler; native offloading releases it in the next step."""
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import RequestStatus

    request.status = RequestStatus.FINISHED_ABORTED
    connector.request_finished_all_groups(request, ([],))
    step = SchedulerOutput.make_empty()
    step.finished_req_ids.add(request.request_id)
    connector.build_connector_meta(step)


def _asked(connector: Any, request: Any) -> None:
    tokens, later = connector.get_num_new_matched_tokens(request, 0)
    assert tokens >= TOKENS - BLOCK and later, tokens
