"""Two hosts that share a folder, and an engine with vLLM's scheduler on one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import msgspec
import pytest

from eventually import eventually
from fleet_host import PATIENT, FleetHost
from harnessed_models import assert_engine_keeps_nothing, groups_of
from harnessed_scheduler import HarnessedEngine, Loads
from pagetier.client import Client
from pagetier.client.engines.fleet_reads import FleetLimits
from pagetier.client.groups import grain_of
from vllm_engine import LONG_S

HARNESS = Path(__file__).parents[1] / "harness"


class Fleet(msgspec.Struct, frozen=True, eq=False):
    """Two hosts and the folder that they share. Engines run on the second one."""

    first: FleetHost
    second: FleetHost
    worker: Client
    folder: Path

    def engine(self, model: str = "full", timeout: float = LONG_S, least: int = 1, ask: float = LONG_S) -> FleetEngine:
        return FleetEngine(self, model, FleetLimits(timeout, least, ask))

    def delay(self, seconds: float, what: str = "delay") -> None:
        """Delays all calls of the store, or those that `what` names, from now on."""
        (self.folder / what).write_text(str(seconds))

    def end_delays(self) -> None:
        for name in ("delay", "delay-get"):
            (self.folder / name).unlink(missing_ok=True)
        assert eventually(lambda: self.second.asks), "the breaker is still open"

    @property
    def remote_tokens(self) -> int:
        return self.second.daemon._observer().counts().remote_tokens


class FleetEngine(HarnessedEngine):
    """An engine on the second host."""

    def __init__(self, fleet: Fleet, model: str, limits: FleetLimits) -> None:
        large = {"max_num_batched_tokens": 4096}
        super().__init__(
            fleet.second.daemon, fleet.worker, groups_of(model), engine=large, disk_timeout=0.0, salt=token_hex(8)
        )
        self.fleet = fleet
        self.half.reads.fleet.limits = limits
        self.half.counters.taken = dict  # else vLLM takes what is counted

    @property
    def grain(self) -> int:
        return grain_of([group.kind for group in self.groups])

    def share(self, prompt: Sequence[int]) -> None:
        """Stores the pages of a prompt on the first host, as the engine there would."""
        one, pages = self.request_of("elsewhere", prompt), 0
        self._know(one)
        for group in self.groups:
            keys = group.keys(one.block_hashes[group.hashes - 1 :: group.hashes])
            result = self.fleet.first.client.store(keys, list(keys))
            assert result.stored + result.present == len(keys)
            pages += result.stored
        self.fleet.first.wait_shared(pages)

    def arrive(self, name: str, prompt: Sequence[int]) -> Any:
        """Submits a request, which vLLM announces from 0.33 on."""
        one = self.submit_prompt(name, prompt)
        if name not in self.half._tracked:
            self.half.arrived(one)
        return one

    def wait(self, name: str) -> int:
        """Asks for a request as vLLM does until it is not delayed, and runs a step. Returns how often it was."""
        delays, one = 0, self.scheduler.requests[name]

        def is_matched() -> bool:
            nonlocal delays
            matched = self.half.matched(one, 0) is not None
            delays += not matched
            return matched

        assert eventually(is_matched)
        self.step()
        return delays

    def loads(self, name: str) -> int:
        """Returns how many tokens a request loads."""
        return self._length(name) if name in self.worker.loading else 0

    def end(self) -> None:
        """Runs until all requests have ended."""
        assert eventually(self._step_to_the_end), self.scheduler.requests
        self.run()
        assert_engine_keeps_nothing(self, self.fleet.second.daemon)

    def _step_to_the_end(self) -> bool:
        self.end_stores()
        self.step(Loads.SUCCEED)
        return not self.scheduler.requests

    @property
    def counted(self) -> dict[str, int]:
        return dict(self.half.counters._counts)


@contextmanager
def two_hosts(folder: Path, ask: float = LONG_S) -> Iterator[Fleet]:
    folder.mkdir()
    url = f"python://slow_folder_store:SlowFolder{folder}"
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HARNESS))
        first = FleetHost(url, stack, *PATIENT)
        asked = ("--set", f"remote.ask_timeout={ask}s", "--set", f"remote.timeout={LONG_S}s")
        second = FleetHost(url, stack, "--set", "remote.write=never", *asked)
        yield Fleet(first, second, stack.enter_context(second.daemon.client()), folder)
        assert second.daemon.findings() == []
