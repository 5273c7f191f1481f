"""Puts an engine to sleep by vLLM's own EngineCore and GPU worker, with a cache that then loses its content.

They run as far as they do without a GPU: the allocator that takes the memory is simulated.
"""

from __future__ import annotations

from secrets import token_hex
from typing import Any, Final

import pytest
import torch
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.engine.arg_utils import EngineArgs

import tiny_model
from harnessed_models import assert_nothing_is_left, engine_of
from harnessed_scheduler import HarnessedEngine
from one_host import MODELS
from pagetier.client import Client
from pagetier.client.engines.vllm import worker as worker_module
from pagetier.client.engines.vllm.connector import PagetierConnector
from pagetier.client.engines.vllm.connector_metadata import NOTHING_TO_DO, StepMetadata
from pagetier.client.engines.vllm.messages import StepCommands
from pagetier.client.engines.vllm.worker import WorkerHalf
from running_daemon import RunningDaemon
from vllm_caches import VllmCache, heads_first
from vllm_engine import LONG_S
from vllm_worker_world import ends, keys_of, load_command, same, slow_of, store_command, worker_of

STORED: Final = (7, 2, 19, 23, 1)
LOADED: Final = (3, 22, 4, 11, 8)

follows_sleep = pytest.mark.skipif(
    not hasattr(KVConnectorBase_V1, "supports_sleep_mode"), reason="this vLLM does not tell its connector"
)


def test_vllm_itself_does_not_sleep_on_a_cpu() -> None:
    """So no real engine sleeps in these tests."""
    model = str(tiny_model.make("llama", MODELS))
    with pytest.raises(ValueError, match="Sleep mode is not supported on current platform"):
        EngineArgs(model=model, skip_tokenizer_init=True, enable_sleep_mode=True).create_engine_config()


class Executor:
    """Hands calls of vLLM's EngineCore to vLLM's GPU worker."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._asleep: set[str] = set()

    @property
    def is_sleeping(self) -> bool:
        return bool(self._asleep)

    def collective_rpc(self, method: str) -> None:
        assert method == "synchronize_device"

    def sleep(self, level: int) -> None:
        self._worker.sleep(level)
        self._asleep = {"weights", "kv_cache"}

    def wake_up(self, tags: list[str] | None) -> None:
        self._worker.wake_up(tags)
        self._asleep -= set(tags or self._asleep)

    def get_kv_connector_handshake_metadata(self) -> list[dict[tuple[int, int], Any]]:
        return [{(0, 0): kv_transfer_state.get_kv_transfer_group().get_handshake_metadata()}]


def vllm_worker(cache: VllmCache, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns vLLM's GPU worker of a cache whose content is lost when it sleeps, as its memory is."""
    from vllm.config import ModelConfig
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackend
    from vllm.v1.worker.gpu_worker import Worker

    class Memory(SleepModeBackend):  # type: ignore[misc]
        def suspend(self, level: int = 1) -> None:
            cache.fill(100 + level)

        def resume(self, tags: list[str] | None = None) -> None:
            if tags is None or "kv_cache" in tags:
                cache.fill(200)

    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda: (0, 0))
    worker: Any = object.__new__(Worker)
    worker._sleep_mode_backend = Memory()
    worker._sleep_saved_parameters = worker._sleep_saved_buffers = worker._sleep_saved_draft_buffers = {}
    worker.synchronize_device = lambda: None
    worker.vllm_config = type("Config", (), {"model_config": type("Model", (), {"enable_nccl_comm_suspend": False})})
    assert hasattr(ModelConfig, "enable_nccl_comm_suspend")
    worker.model_runner = type("Runner", (), {"model": torch.nn.Linear(1, 1)})
    worker.get_draft_model = lambda: None
    worker._save_sleep_parameters = lambda _: None
    return worker


def engine_core(engine: HarnessedEngine, executor: Executor) -> Any:
    """Returns vLLM's EngineCore of a harnessed scheduler."""
    from vllm.v1.engine.core import EngineCore

    core: Any = object.__new__(EngineCore)
    core.scheduler, core.model_executor = engine.scheduler, executor
    core.reset_mm_cache = core.reset_encoder_cache = lambda: None
    return core


def half_of(engine: HarnessedEngine, cache: VllmCache, client: Client, monkeypatch: pytest.MonkeyPatch) -> WorkerHalf:
    """Returns the worker's half of the connector that vLLM's worker finds, with copies that take long."""
    monkeypatch.setattr(worker_module, "_CANCEL_AFTER_S", LONG_S)  # stores end on a busy machine, too
    half = worker_of(client, cache, salt=token_hex(8), settings=slow_of(cache, client, 100))
    connector = PagetierConnector(engine.connector._config, KVConnectorRole.WORKER, engine.connector._groups)
    connector._worker = half
    monkeypatch.setattr(kv_transfer_state, "_KV_CONNECTOR_AGENT", connector)
    return half


@follows_sleep
@pytest.mark.parametrize("level", [1, 2])
def test_a_sleep_ends_copies_and_forgets_pages(
    level: int, daemon: RunningDaemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, cache = engine_of("full", daemon, client), heads_first()
    cache.fill(level)
    half = half_of(engine, cache, client, monkeypatch)
    core = engine_core(engine, Executor(vllm_worker(cache, monkeypatch)))

    engine.submit(1, 100)
    engine.run()
    engine.submit(2, 100)
    engine.step()
    stored = [cache.page(block) for block in STORED]
    half.store([store_command(half, 0, STORED)])
    core.sleep(level)
    assert core.is_sleeping() and all(storing.store.ended for storing in half._storing)
    asleep = cache.page(LOADED[0])
    half.store([store_command(half, 0, STORED, prompt=1)])
    half.load([load_command(half, client, (0, LOADED))])
    assert ends(half).failed and same(cache.page(LOADED[0]), asleep)
    assert not core.wake_up(["weights"]) and same(cache.page(LOADED[0]), asleep)
    assert core.wake_up(["kv_cache"]) and not core.is_sleeping()

    half.load([load_command(half, client, (0, LOADED))])
    assert not ends(half).failed
    assert all(same(cache.page(block), page) for block, page in zip(LOADED, stored, strict=True))
    with client.match(keys_of(half, 0, len(STORED), 1)) as match:
        assert not len(match), "a page without memory was stored"
    engine.groups = engine.worker.groups = engine.half._groups  # with the salt of a reset
    again = engine.submit(1, 100)
    assert engine.run() == 0 and again.is_finished(), "pages of weights that may have been replaced were found"
    assert_nothing_is_left(engine, daemon)


def test_stores_that_vllm_has_not_begun_read_the_cache_before_it_goes(
    daemon: RunningDaemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With drafts vLLM's V1 model runner does not finalize the steps of the first stages of a pipeline."""
    engine, cache = engine_of("full", daemon, client), heads_first()
    cache.fill(1)
    half = half_of(engine, cache, client, monkeypatch)
    connector: Any = kv_transfer_state.get_kv_transfer_group()
    stored = [cache.page(block) for block in STORED]
    connector.bind_connector_metadata(StepMetadata(StepCommands(stores=(store_command(half, 0, STORED),))))
    connector.unregister_kv_caches()
    cache.fill(2)
    connector.restore_kv_caches()
    connector.handle_preemptions(NOTHING_TO_DO)
    ends(half)
    half.load([load_command(half, client, (0, LOADED))])
    assert not ends(half).failed
    assert all(same(cache.page(block), page) for block, page in zip(LOADED, stored, strict=True))
    assert_nothing_is_left(engine, daemon)
