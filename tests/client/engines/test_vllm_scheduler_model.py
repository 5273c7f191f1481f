"""Runs any sequence of requests on a scheduler that assigns blocks like vLLM, and verifies all pages.

The test knows the content of each block (see TrueWorker). Requests share prefixes, are aborted and preempted, their
loads and stores end late or fail, pages are evicted, and windows and states leave their blocks behind.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from secrets import token_hex
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from eventually import eventually
from fake_vllm_requests import FINISHED, LOADING, Step
from fake_vllm_scheduler import Scheduler
from pagetier.client import Client
from pagetier.client.engines.vllm.gpu_pages import GpuPages
from pagetier.client.engines.vllm.request_state import PagedGroup
from pagetier.client.engines.vllm.scheduler import SchedulerHalf
from pagetier.client.groups import FullAttention, Group, Recurrent, SlidingWindow
from running_daemon import RunningDaemon, namespace
from virtual_clock import VirtualClock
from vllm_block_pool import PoolView
from vllm_expected_blocks import Tokens, TrueWorker

MODELS: dict[str, tuple[int, tuple[Group, ...]]] = {
    "full": (4, (FullAttention(4),)),
    "full, hashed finer": (2, (FullAttention(4),)),
    "windows": (4, (SlidingWindow(4, 6), SlidingWindow(4, 6), FullAttention(4))),
    "window of a page": (4, (FullAttention(4), SlidingWindow(4, 5))),
    "recurrent": (4, (Recurrent(4), Recurrent(4), FullAttention(4))),
    "all kinds, longer pages": (4, (Recurrent(8), SlidingWindow(4, 9), FullAttention(8))),
}
picks = st.integers(0, 1 << 16)


class Host(NamedTuple):
    """A daemon, and a client of each half."""

    daemon: RunningDaemon
    scheduler: Client
    worker: Client

    def pins(self) -> int:
        """Returns the pins of both clients."""
        return sum(slot.pins for slot in self.daemon.slots())

    def settled(self) -> bool:
        """Returns whether no reservation is open."""
        return not self.daemon.header().open_entries


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with RunningDaemon("512KiB", "4KiB") as daemon, daemon.client() as scheduler, daemon.client() as worker:
        yield Host(daemon, scheduler, worker)


class SchedulerMachine(RuleBasedStateMachine):
    host: Host
    clock: VirtualClock

    @initialize(
        model=st.sampled_from(sorted(MODELS)),
        lag=st.integers(0, 1),
        blocks=st.sampled_from([36, 40, 48, 80]),
        budget=st.integers(8, 24),
        offers=st.booleans(),
        on_eviction=st.booleans(),
    )
    def start(self, model: str, lag: int, blocks: int, budget: int, offers: bool, on_eviction: bool) -> None:
        hash_tokens, kinds = MODELS[model]
        salt = token_hex(8)
        groups = [
            PagedGroup(
                kind,
                namespace(kind.page_tokens, group=str(at), salt=salt),
                kind.page_tokens // hash_tokens,
                True,
            )
            for at, kind in enumerate(kinds)
        ]
        self.half = SchedulerHalf(self.host.scheduler, groups, 0.0)
        self.worker = TrueWorker(self.host.worker, groups)
        self.engine = Scheduler(self.half, kinds, hash_tokens=hash_tokens, blocks=blocks, budget=budget, offers=offers)
        if on_eviction and model.startswith("full"):
            step_blocks = -(-budget // kinds[0].page_tokens)
            self.half.gpu_pages = GpuPages(PoolView(self.engine.pool), step_blocks, self.half.counters)
        self.lag, self.submitted = lag, 0
        self.steps: deque[Step] = deque()
        self.stored: set[str] = set()
        self.loaded: dict[str, bool] = {}

    @rule(family=st.integers(0, 1), shared=st.integers(1, 40), own=st.integers(0, 8), answer=st.integers(1, 20))
    def submit(self, family: int, shared: int, own: int, answer: int) -> None:
        self.submitted += 1
        prompt = [family * 100 + at for at in range(shared)] + [1000 + self.submitted * 10 + at for at in range(own)]
        future: Tokens = tuple(prompt + [500 + (prompt[-1] + at) % 3 for at in range(answer)])
        self.engine.add(f"r{self.submitted}", future, len(prompt))

    @rule(steps=st.integers(1, 6))
    def run_steps(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    @precondition(lambda self: self.worker.reading)
    @rule(pick=picks, count=st.integers(1, 8))
    def stores_end(self, pick: int, count: int) -> None:
        first = pick % len(self.worker.reading)
        self.stored |= self.worker.end_stores(slice(first, first + count))

    @precondition(lambda self: self.worker.loading)
    @rule(pick=picks, fails=st.sampled_from([False, False, True]))
    def load_ends(self, pick: int, fails: bool) -> None:
        request = sorted(self.worker.loading)[pick % len(self.worker.loading)]
        self.loaded[request] = self.worker.end_load(request, fails=fails)

    @precondition(lambda self: self.engine.requests)
    @rule(pick=picks)
    def abort(self, pick: int) -> None:
        living = [one for one in self.engine.requests.values() if one.state != FINISHED]
        if living:
            self.engine.finish(living[pick % len(living)])

    @rule()
    def prefix_cache_is_reset(self) -> None:
        """Removes the hashes of unused blocks."""
        self.engine.pool.forget()

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.passes(seconds)

    @rule(pages=st.integers(1, 128))
    def others_store(self, pages: int) -> None:
        """Stores so many pages that other pages may be evicted."""
        others = namespace(16, salt=token_hex(8)).keys(range(16 * pages))
        self.worker.client.store(others, [b"x"] * pages)

    def step(self) -> None:
        for request in self.engine.requests.values():
            self.worker.know(request.block_hashes, request.future)
        loading = [one for one in self.engine.requests.values() if one.state == LOADING]
        step = self.engine.schedule()
        loading += [one for one in self.engine.requests.values() if one.state == LOADING]
        assert loading or not self.engine.delayed, "a request waits for no load"
        for name in self.engine.delayed:
            assert self.half._tracked[name].found is None, "a request pins pages while it waits"
        commands = self.half.build(step)
        self.engine.advance(step)
        self.worker.step(commands, (), step.computed)
        step.stored, step.loaded, self.stored, self.loaded = self.stored, self.loaded, set(), {}
        self.steps.append(step)
        while len(self.steps) > self.lag:
            self.engine.update(self.steps.popleft())

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.come_to_an_end()

    def come_to_an_end(self) -> None:
        for _ in range(6000):
            if not self.engine.requests:
                break
            for _ in range(len(self.worker.loading)):
                self.load_ends(0, False)
            self.stored |= self.worker.end_stores(slice(0, None))
            self.clock.passes(0.1)
            self.step()
        assert not self.engine.requests, "a request has not ended"
        while self.steps:
            self.engine.update(self.steps.popleft())
        assert len(self.engine.pool.free) == self.engine.blocks - 1, "a block is lost"
        assert not self.half._tracked, "the half still has a request"
        assert self.half.gpu_pages is None or len(self.half.gpu_pages) < self.engine.blocks
        assert not len(self.half._arriving), "a request would wait for a load that has ended"
        assert not self.host.pins(), "a pin is left"


def test_no_sequence_of_requests_stores_wrong_content(host: Host, standing_clock: VirtualClock) -> None:
    SchedulerMachine.host, SchedulerMachine.clock = host, standing_clock
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(
            max_examples=int(os.environ.get("TEST_EXAMPLES", "60")),
            stateful_step_count=40,
            deadline=None,
            print_blob=True,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
    assert eventually(host.settled), "a reservation is open"
