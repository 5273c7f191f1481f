"""A simulated vLLM that runs step by step on a real daemon, and counts the pages that it loads."""

from __future__ import annotations

from collections.abc import Sequence
from secrets import token_hex

from eventually import eventually
from fake_vllm_requests import FINISHED, LOADING, Request
from fake_vllm_scheduler import Scheduler, Turn
from pagetier.client import Client
from pagetier.client.engines.vllm.arriving_pages import PrefixCache
from pagetier.client.engines.vllm.gpu_pages import GpuPages
from pagetier.client.engines.vllm.request_state import PagedGroup
from pagetier.client.engines.vllm.scheduler import SchedulerHalf
from pagetier.client.groups import Group
from running_daemon import RunningDaemon, namespace
from vllm_block_pool import PoolView
from vllm_expected_blocks import Tokens, TrueWorker

HASHED = 4
"""Tokens of a block hash."""

ANSWER = 6


class SimulatedEngine:
    """An engine whose worker verifies the content of all blocks.

    Attributes:
        loaded_pages: The number of pages of all load commands.
        stored_blocks: The blocks of all store commands.
    """

    def __init__(
        self,
        daemon: RunningDaemon,
        clients: tuple[Client, Client],
        kinds: Sequence[Group],
        *,
        blocks: int = 4000,
        turn: Turn = Turn.LOADED_FIRST,
        prefix_cache: PrefixCache = PrefixCache.ON,
        disk_timeout: float = 0.0,
        budget: int = 4000,
    ) -> None:
        self.daemon, salt = daemon, token_hex(8)
        groups = [
            PagedGroup(
                kind, namespace(kind.page_tokens, group=str(at), salt=salt), kind.page_tokens // HASHED, strong=True
            )
            for at, kind in enumerate(kinds)
        ]
        self.half = SchedulerHalf(clients[0], groups, disk_timeout, prefix_cache=prefix_cache)
        self.worker = TrueWorker(clients[1], groups)
        self.vllm = Scheduler(self.half, kinds, hash_tokens=HASHED, blocks=blocks, budget=budget, offers=False)
        self.vllm.turn = turn
        self.loaded_pages = 0
        self.stored_blocks: list[int] = []

    def store_on_eviction(self) -> GpuPages:
        """Stores pages from now on when they leave the engine's cache."""
        step_blocks = -(-self.vllm.budget // self.vllm.kinds[0].page_tokens)
        self.half.gpu_pages = GpuPages(PoolView(self.vllm.pool), step_blocks, self.half.counters)
        return self.half.gpu_pages

    def store_elsewhere(self, prompt: Sequence[int]) -> None:
        """Stores all pages of a prompt, as another engine would."""
        request = Request("elsewhere", self._future(prompt), len(prompt), HASHED, len(self.worker.groups))
        self.worker.know(request.block_hashes, request.future)
        for group in self.worker.groups:
            keys = group.keys(request.block_hashes[group.hashes - 1 :: group.hashes])
            self.worker.client.store(keys, list(keys))

    def submit(self, name: str, prompt: Sequence[int]) -> Request:
        """Adds a request."""
        return self.vllm.add(name, self._future(prompt), len(prompt))

    def step(self, *, loads_end: bool = True, fails: bool = False) -> list[str]:
        """Runs a step. Returns the requests that load pages from this step on."""
        for request in self.vllm.requests.values():
            self.worker.know(request.block_hashes, request.future)
        step = self.vllm.schedule()
        commands = self.half.build(step)
        self.loaded_pages += sum(len(group.blocks) for load in commands.loads for group in load.groups)
        self.stored_blocks += [block for store in commands.stores for block in store.blocks]
        self.vllm.advance(step)
        self.worker.step(commands, (), step.computed)
        step.stored = self.worker.end_stores(slice(0, None))
        if loads_end:
            step.loaded = {name: self.worker.end_load(name, fails=fails) for name in sorted(self.worker.loading)}
        self.vllm.update(step)
        return [load.request for load in commands.loads]

    def run(self) -> None:
        """Runs until all requests have ended, and checks that nothing is left."""
        for _ in range(2000):
            if not self.vllm.requests:
                break
            self.step()
        assert not self.vllm.requests, "a request has not ended"
        assert not self.half._tracked and not len(self.half._arriving)
        assert len(self.vllm.pool.free) == self.vllm.blocks - 1, "a block is lost"
        assert eventually(lambda: not self.pins()), "a pin is left"

    def pins(self) -> int:
        """Returns the number of pinned pages of all processes."""
        return sum(slot.pins for slot in self.daemon.slots())

    def states(self) -> dict[str, str]:
        """Returns the state of each request that has not ended."""
        return {name: one.state for name, one in self.vllm.requests.items() if one.state != FINISHED}

    def loading(self) -> list[str]:
        """Returns the requests that load pages."""
        return [name for name, state in self.states().items() if state == LOADING]

    def _future(self, prompt: Sequence[int]) -> Tokens:
        return (*prompt, *(900_000 + (prompt[-1] * ANSWER + at) for at in range(ANSWER)))
