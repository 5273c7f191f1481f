"""Tests `"store": "on_eviction"` with vLLM's own blocks: what is stored, when, and what remains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import pytest

from eventually import eventually
from harnessed_models import aborted, assert_nothing_is_left, engine_of
from harnessed_scheduler import BLOCK, HarnessedEngine
from pagetier.client import Client
from pagetier.client.engines.vllm.gpu_pages import GpuPages
from running_daemon import RunningDaemon
from seeded_random import chance

BLOCKS = 100
BUDGET = 8 * BLOCK  # tokens a step, so that the pages in the next 16 blocks, and more after a large step, are stored


class Scene(NamedTuple):
    """An engine whose own cache has some 100 blocks."""

    engine: HarnessedEngine
    client: Client
    daemon: RunningDaemon
    added: mock.Mock

    @property
    def pages(self) -> GpuPages:
        pages: GpuPages | None = self.engine.half.gpu_pages
        assert pages is not None
        return pages

    def ask(self, prompt: Sequence[int], name: str = "") -> int:
        """Runs a request to its end. Returns how many pages it has loaded."""
        before = self.engine.loaded_pages
        self.engine.submit_prompt(name or f"{prompt[0]}-{len(prompt)}", prompt)
        self.engine.run()
        return self.engine.loaded_pages - before

    def has(self, prompt: Sequence[int]) -> list[bool]:
        """Returns for each page of a prompt whether the daemon has it."""
        keys = self.engine.groups[0].keys(self.engine.request_of("", prompt).block_hashes)
        found = []
        for at in range(len(keys)):
            with self.client.match(keys[at : at + 1]) as match:
                found.append(bool(len(match)))
        return found

    def unstored_pages(self) -> int:
        """Returns how many pages were not stored in time since the last call."""
        counted = [call.args[1] for call in self.added.call_args_list if call.args[0] == "unstored_pages"]
        self.added.reset_mock()
        return sum(counted)


Open = Callable[..., Scene]


@pytest.fixture
def opened(daemon: RunningDaemon, client: Client) -> Iterator[Open]:
    daemon.drop_all_pages()
    engines: list[HarnessedEngine] = []
    yield partial(open_scene, daemon, client, engines)
    for engine in engines:
        engine.run()
        assert_nothing_is_left(engine, daemon)


def open_scene(
    daemon: RunningDaemon,
    client: Client,
    engines: list[HarnessedEngine],
    store: str = "on_eviction",
    budget: int = BUDGET,
    lag: int = 0,
) -> Scene:
    large = {"max_num_batched_tokens": budget}
    engine = engine_of("full", daemon, client, BLOCKS, store=store, engine=large, lag=lag)
    engines.append(engine)
    assert (engine.half.gpu_pages is not None) is (store == "on_eviction")
    counters = engine.half.counters
    added = mock.Mock(side_effect=counters.add)
    counters.add = added  # vLLM takes what is counted
    return Scene(engine, client, daemon, added)


def prompt(number: int, pages: int = 20) -> list[int]:
    """Returns a prompt that shares no page with others."""
    return [10000 * (number + 1) + at for at in range(pages * BLOCK + 1)]


@pytest.mark.parametrize("lag", [0, 1])
def test_only_pages_that_leave_the_engine_are_stored(opened: Open, lag: int) -> None:
    scene = opened(lag=lag)
    scene.ask(prompt(0))
    assert not any(scene.has(prompt(0))) and not scene.engine.worker.planned_stores
    assert len(scene.pages) >= 20
    assert scene.ask(prompt(0), "again") == 0, "its own cache has them"
    for number in range(1, 10):
        scene.ask(prompt(number))
    assert all(scene.has(prompt(0))) and not any(scene.has(prompt(9)))
    assert scene.ask(prompt(0), "once more") == 20


def test_no_page_is_lost_if_a_step_could_take_all_blocks(opened: Open) -> None:
    """Then blocks that have just become unused may be reused in the next step."""
    scene = opened(budget=4096)
    for number in range(10):
        scene.ask(prompt(number))
    assert all(scene.has(prompt(0)))
    assert not scene.unstored_pages()


def test_a_tail_is_found_behind_pages_that_only_the_engine_has(opened: Open) -> None:
    """The tail of a prompt leaves first, so that the daemon has pages without those before them."""
    scene, long = opened(), prompt(0, 60)
    scene.ask(long)
    manager, computed = scene.engine.scheduler.kv_cache_manager, 60 * BLOCK
    for number in range(1, 60):
        scene.ask(prompt(number, 1))
        computed = manager.get_computed_blocks(scene.engine.request_of("", long))[1]
        if computed < 50 * BLOCK:
            break
    has = scene.has(long)
    assert 0 < computed < 50 * BLOCK and has[-1] and not has[0]
    assert scene.ask(long, "again") == 60 - computed // BLOCK


def test_fewer_pages_are_stored_than_with_eager_stores(opened: Open) -> None:
    stored = []
    for store in ("on_eviction", "eager"):
        scene = opened(store)
        for number in (0, 1, 2, 0, 1, 3, 4):
            scene.ask(prompt(number))
        stored.append(scene.engine.worker.planned_stores)
    on_eviction, eager = stored
    assert 0 < on_eviction < eager - 40, (on_eviction, eager)


def test_a_page_is_offered_again_when_it_leaves_again(opened: Open) -> None:
    """The daemon may have evicted it while the engine had it."""
    scene = opened()
    for number in range(10):
        scene.ask(prompt(number))
    assert scene.ask(prompt(0), "again") == 20
    scene.daemon.drop_all_pages()
    for number in range(20, 30):
        scene.ask(prompt(number))
    assert all(scene.has(prompt(0)))


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_a_preempted_request_leaves_the_pages_that_it_computes_again(opened: Open, runner: str) -> None:
    """They are in no other blocks, and the daemon may have evicted them since they left the cache the first time."""
    scene = opened()
    scheduler: Any = scene.engine.scheduler
    scheduler.use_v2_model_runner = runner == "V2"
    request = scene.engine.submit_prompt("again", prompt(0, 60))
    _run_until_computed(scene, request)
    scheduler.running.remove(request)
    scheduler._preempt_request(request, 0.0)
    scheduler.kv_cache_manager.reset_prefix_cache()
    scene.daemon.drop_all_pages()
    _run_until_computed(scene, request)
    scheduler.finish_requests("again", aborted())
    for number in range(1, 10):
        scene.ask(prompt(number))
    assert scene.has(prompt(0, 60)) == [True] * 60


def _run_until_computed(scene: Scene, request: Any) -> None:
    while request.num_computed_tokens < 60 * BLOCK:
        scene.engine.step()


@pytest.mark.parametrize("ends", ["aborted", "preempted"])
def test_a_request_that_ends_early_leaves_its_pages(opened: Open, ends: str) -> None:
    scene = opened()
    request = scene.engine.submit_prompt("early", prompt(0, 60))
    for _ in range(4):
        scene.engine.step()
    computed = request.num_computed_tokens // BLOCK
    assert 0 < computed < 60
    if ends == "aborted":
        scene.engine.scheduler.finish_requests("early", aborted())
    else:
        scheduler: Any = scene.engine.scheduler
        scheduler.running.remove(request)
        scheduler._preempt_request(request, 0.0)
    for number in range(1, 10):
        scene.ask(prompt(number))
    assert scene.has(prompt(0, 60))[:computed] == [True] * computed


def test_aborted_and_preempted_requests_leave_no_block_behind(opened: Open) -> None:
    scene, numbers = opened(lag=1), chance()
    engine = scene.engine
    for number in range(60):
        engine.submit(
            number, int(numbers.integers(8, 20)) * BLOCK + 3, common=int(numbers.choice([0, 64, 128])), answer=40
        )
        for _ in range(numbers.integers(4)):
            engine.end_stores()
            engine.end_loads()
            engine.step()
        living = [name for name, one in engine.scheduler.requests.items() if not one.is_finished()]
        if living and numbers.random() < 0.3:
            engine.scheduler.finish_requests(str(numbers.choice(living)), aborted())
    engine.run(3000)
    assert engine.worker.planned_stores


def test_a_reset_forgets_the_pages_while_stores_run(opened: Open) -> None:
    """The weights may have changed: pages from before get no key of later ones."""
    scene = opened()
    for number in range(8):
        scene.engine.submit_prompt(f"{number}", prompt(number))
        while scene.engine.scheduler.requests or scene.engine.scheduler.finished_req_ids:
            scene.engine.step()
    assert scene.engine.worker.reading, "stores are in progress"
    planned = scene.engine.worker.planned_stores
    assert scene.engine.scheduler.reset_prefix_cache(reset_connector=True)
    assert not len(scene.pages)
    scene.engine.run()
    scene.engine.step()
    assert scene.engine.worker.planned_stores == planned


def test_a_block_that_is_reused_before_its_store_is_counted(opened: Open) -> None:
    """A load takes more blocks than the steps before; the next one is prepared for it."""
    scene = opened()
    for number in range(6):
        scene.ask(prompt(number))
    scene.engine.store_prompt_elsewhere(prompt(10, 60))
    assert scene.ask(prompt(10, 60)) == 60
    assert 0 < scene.unstored_pages() < 60
    scene.ask(prompt(11, 10))
    scene.engine.store_prompt_elsewhere(prompt(12, 60))
    assert scene.ask(prompt(12, 60)) == 60
    assert not scene.unstored_pages()


def test_stores_fail_without_a_daemon_and_nothing_is_kept() -> None:
    engines: list[HarnessedEngine] = []
    with RunningDaemon("8MiB", "4KiB") as daemon, daemon.client() as client:
        scene = open_scene(daemon, client, engines)
        scene.ask(prompt(0))
        daemon.kill()
        for number in range(1, 10):
            scene.ask(prompt(number))
        assert scene.engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == BLOCKS - 1, "a block is lost"
        assert len(scene.pages) < BLOCKS
        daemon.start()
        assert eventually(lambda: client.attached and scene.engine.half._client.attached)
        for number in range(20, 30):
            scene.ask(prompt(number))
        assert all(scene.has(prompt(20)))
        assert_nothing_is_left(scene.engine, daemon)
