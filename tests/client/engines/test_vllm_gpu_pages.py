"""Tests stores that wait until a page leaves vLLM's own cache: what is stored, when, and what remains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from eventually import eventually
from fake_vllm_config import group, vllm_config
from fake_vllm_requests import Request
from pagetier.client import Client
from pagetier.client.engines.vllm.counters import ConnectorCounters
from pagetier.client.engines.vllm.gpu_pages import GpuPages, gpu_pages_of
from pagetier.client.engines.vllm.messages import StoreCommand
from pagetier.client.groups import FullAttention
from running_daemon import RunningDaemon
from simulated_engine import HASHED, SimulatedEngine
from vllm_caches import SlidingWindowSpec

PAGE = 4
BLOCKS = 100
BUDGET = 32  # tokens a step, so that the pages in the next 16 blocks, and more after a large step, are stored


class Engine(NamedTuple):
    """An engine whose own cache has some 100 blocks."""

    vllm: SimulatedEngine
    pages: GpuPages
    worker: Client

    def ask(self, prompt: Sequence[int], name: str = "") -> int:
        """Runs a request to its end. Returns how many pages it has loaded."""
        before = self.vllm.loaded_pages
        self.vllm.submit(name or f"{prompt[0]}-{len(prompt)}", prompt)
        self.vllm.run()
        return self.vllm.loaded_pages - before

    def has(self, prompt: Sequence[int]) -> list[bool]:
        """Returns for each page of a prompt whether the daemon has it."""
        (paged,) = self.vllm.half._groups
        keys = paged.keys(Request("", tuple(prompt), len(prompt), HASHED, 1).block_hashes)
        found = []
        for at in range(len(keys)):
            with self.worker.match(keys[at : at + 1]) as match:
                found.append(bool(len(match)))
        return found


@pytest.fixture(scope="module")
def host() -> Iterator[tuple[RunningDaemon, tuple[Client, Client]]]:
    with RunningDaemon("8MiB", "4KiB") as daemon, daemon.client() as scheduler, daemon.client() as worker:
        yield daemon, (scheduler, worker)


@pytest.fixture
def engine(host: tuple[RunningDaemon, tuple[Client, Client]]) -> Engine:
    return open_engine(*host)


def open_engine(
    daemon: RunningDaemon, clients: tuple[Client, Client], *, wait: bool = True, budget: int = BUDGET
) -> Engine:
    vllm = SimulatedEngine(daemon, clients, (FullAttention(PAGE),), blocks=BLOCKS, budget=budget)
    pages = vllm.store_on_eviction() if wait else GpuPages.__new__(GpuPages)
    return Engine(vllm, pages, clients[1])


def prompt(number: int, pages: int = 20) -> list[int]:
    """Returns a prompt that shares no page with others."""
    return [1000 * (number + 1) + at for at in range(pages * PAGE + 1)]


def test_pages_that_the_engine_still_has_are_not_stored(engine: Engine) -> None:
    engine.ask(prompt(1))
    assert not any(engine.has(prompt(1)))
    assert len(engine.pages) >= 20
    assert engine.ask(prompt(1), "again") == 0, "its own cache has them"


def test_pages_that_left_the_engine_are_loaded(engine: Engine) -> None:
    for number in range(10):
        engine.ask(prompt(number))
    assert all(engine.has(prompt(0)))
    assert not any(engine.has(prompt(9)))
    assert engine.ask(prompt(0), "again") == 20
    assert len(engine.pages) < BLOCKS


def test_no_page_is_lost_if_a_step_could_take_all_blocks(host: tuple[RunningDaemon, tuple[Client, Client]]) -> None:
    """Then blocks that have just become unused may be reused in the next step."""
    engine = open_engine(*host, budget=4000)
    for number in range(10):
        engine.ask(prompt(number))
    assert all(engine.has(prompt(0)))
    assert "unstored_pages" not in engine.vllm.half.counters.taken()


def test_a_tail_is_found_behind_pages_that_only_the_engine_has(engine: Engine) -> None:
    """The tail of a prompt leaves first, so that the daemon has pages without those before them."""
    long = prompt(0, 60)
    engine.ask(long)
    computed = 60 * PAGE
    for number in range(1, 60):
        engine.ask(prompt(number, 1))
        computed, _ = engine.vllm.vllm._local(Request("", tuple(long), len(long), HASHED, 1))
        if computed < 50 * PAGE:
            break
    has = engine.has(long)
    assert 0 < computed < 50 * PAGE and has[-1] and not has[0]
    assert engine.ask(long, "again") == 60 - computed // PAGE


def test_fewer_pages_are_stored_than_with_eager_stores(host: tuple[RunningDaemon, tuple[Client, Client]]) -> None:
    stored = []
    for wait in (True, False):
        engine = open_engine(*host, wait=wait)
        for number in (0, 1, 2, 0, 1, 3, 4):
            engine.vllm.submit(f"{number}", prompt(number))
            engine.vllm.run()
        stored.append(engine.vllm.worker.planned_stores)
    on_eviction, eager = stored
    assert 0 < on_eviction < eager - 40, (on_eviction, eager)


def test_a_page_is_offered_again_when_it_leaves_again(engine: Engine) -> None:
    """The daemon may have evicted it while the engine had it."""
    for number in range(10):
        engine.ask(prompt(number))
    assert engine.ask(prompt(0), "again") == 20
    engine.vllm.daemon.drop_all_pages()
    for number in range(20, 30):
        engine.ask(prompt(number))
    assert all(engine.has(prompt(0)))


@pytest.mark.parametrize("ends", ["aborted", "preempted"])
def test_a_request_that_ends_early_leaves_its_pages(engine: Engine, ends: str) -> None:
    request = engine.vllm.submit("early", prompt(0, 60))
    for _ in range(4):
        engine.vllm.step()
    assert 0 < request.num_computed_tokens < 240
    computed = request.num_computed_tokens // PAGE
    if ends == "aborted":
        engine.vllm.vllm.finish(request)
    else:
        engine.vllm.vllm._preempt(request)
    for number in range(1, 10):
        engine.ask(prompt(number))
    assert engine.has(prompt(0, 60))[:computed] == [True] * computed


def test_a_reset_forgets_the_pages(engine: Engine) -> None:
    """The weights may have changed: pages from before get no key of later ones."""
    engine.ask(prompt(0))
    engine.vllm.vllm.pool.forget()
    engine.vllm.half.renew()
    assert not len(engine.pages)
    engine.vllm.run()
    planned = engine.vllm.worker.planned_stores
    assert planned == 0


def test_a_block_that_is_reused_before_its_store_is_counted(engine: Engine) -> None:
    """A load takes more blocks than the steps before; the next one is prepared for it."""
    for number in range(6):
        engine.ask(prompt(number))
    engine.vllm.store_elsewhere(prompt(10, 60))
    assert engine.ask(prompt(10, 60)) == 60
    assert 0 < engine.vllm.half.counters.taken()["unstored_pages"] < 60
    engine.ask(prompt(11, 10))
    engine.vllm.store_elsewhere(prompt(12, 60))
    assert engine.ask(prompt(12, 60)) == 60
    assert "unstored_pages" not in engine.vllm.half.counters.taken()


def test_stores_fail_without_a_daemon_and_nothing_is_kept(tmp_path: Any) -> None:
    with RunningDaemon("8MiB", "4KiB") as daemon, daemon.client() as scheduler, daemon.client() as worker:
        engine = open_engine(daemon, (scheduler, worker))
        engine.ask(prompt(0))
        daemon.kill()
        for number in range(1, 10):
            engine.vllm.submit(f"{number}", prompt(number))
            while engine.vllm.vllm.requests:
                engine.vllm.step()
        assert len(engine.vllm.vllm.pool.free) == BLOCKS - 1, "a block is lost"
        assert len(engine.pages) < BLOCKS
        daemon.start()
        assert eventually(lambda: worker.attached and scheduler.attached)
        for number in range(20, 30):
            engine.ask(prompt(number))
        assert all(engine.has(prompt(20)))


class Blocks:
    """Free blocks that are reused from the highest number on; those in `unhashed` are not cached."""

    def __init__(self, free: int, unhashed: Sequence[int] = ()) -> None:
        self.unhashed, self._free, self.looked_up = unhashed, free, 0

    def hash_of(self, block: int) -> object:
        return None if block in self.unhashed else -block

    def free(self) -> Iterator[int]:
        for block in range(self._free, 0, -1):
            self.looked_up += 1
            yield block


IDLE: Any = SimpleNamespace(
    scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
    scheduled_spec_decode_tokens={},
    num_scheduled_tokens={},
)


def command(name: str, blocks: Sequence[int]) -> StoreCommand:
    """Returns a command to store the first pages of a prompt in these blocks."""
    keys = b"".join(f"{name}{at}".encode().ljust(32) for at in range(len(blocks)))
    return StoreCommand(name, 0, 0, keys, tuple(blocks), "salt", before=b"")


def test_heads_are_stored_before_tails_in_runs_of_consecutive_pages() -> None:
    pages = GpuPages(Blocks(8), 1, ConnectorCounters())
    assert not [*pages.remember([command("a", range(1, 9)), command("b", range(21, 26))])]
    one, other = pages.plan({}, IDLE, {6, 99})  # looks up 8, 7, 6 and 5: two steps of a block, and the two of this one
    keys = command("a", range(8)).keys
    assert (one.first, one.blocks, one.keys, one.before) == (4, (5,), keys[128:160], keys[96:128])
    assert (other.first, other.blocks, other.keys, other.before) == (6, (7, 8), keys[192:], keys[160:192])
    assert len(pages) == 4 + 5


def test_pages_that_the_engine_does_not_cache_are_stored_at_once() -> None:
    """They would be lost at the end of their request."""
    pages = GpuPages(Blocks(8, unhashed=[3, 4]), 1, ConnectorCounters())
    whole = command("a", range(1, 5))
    (rest,) = pages.remember([whole])
    assert (rest.first, rest.blocks, rest.keys) == (2, (3, 4), whole.keys[64:])
    assert rest.before == whole.keys[32:64]
    assert len(pages) == 2
    assert [*pages.remember([command("b", [4, 1])])] == [command("b", [4, 1])]


def test_steps_that_take_no_blocks_look_at_none() -> None:
    blocks = Blocks(1000)
    pages = GpuPages(blocks, 10, ConnectorCounters())
    for _ in range(100):
        assert not [*pages.plan({}, IDLE, frozenset())]
    assert blocks.looked_up == 0
    for block in range(100):
        assert not [*pages.plan({}, IDLE, {block})]
    assert blocks.looked_up <= 10 * (2 * 10 + 2), "a walk happens once for the blocks of a step"


KINDS: dict[str, Any] = {
    "supported": ({}, "both", group(), True, ""),
    "windows": ({}, "both", SimpleNamespace(kv_cache_spec=SlidingWindowSpec(16, 32)), True, "full attention"),
    "events": ({"kv_events_config": SimpleNamespace(enable_kv_cache_events=True)}, "both", group(), True, "events"),
    "prefill only": ({}, "producer", group(), True, "kv_role"),
    "no pool": ({}, "both", group(), False, "does not show its free blocks"),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_cannot_wait_is_stored_at_once_with_a_reason(name: str, caplog: pytest.LogCaptureFixture) -> None:
    more, role, one, shows, reason = KINDS[name]
    config = vllm_config()
    vars(config).update(more)
    config.kv_transfer_config = SimpleNamespace(is_kv_producer=True, is_kv_consumer=role == "both")
    config.scheduler_config = SimpleNamespace(max_num_batched_tokens=64)
    queue = SimpleNamespace(fake_free_list_head=SimpleNamespace(next_free_block=None))
    pool = SimpleNamespace(blocks=[], free_block_queue=queue if shows else None)
    made = gpu_pages_of(config, SimpleNamespace(kv_cache_groups=[one]), pool, ConnectorCounters())
    assert (made is None) is bool(reason)
    assert len(caplog.records) == bool(reason)
    assert reason in caplog.text
