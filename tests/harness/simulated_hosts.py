"""Two hosts that share a folder, and a simulated vLLM on one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from eventually import eventually
from fake_vllm_requests import Request
from fleet_host import PATIENT, FleetHost
from pagetier.client import Client
from pagetier.client.engines.fleet_reads import FleetLimits
from pagetier.client.groups import Group
from simulated_engine import HASHED, SimulatedEngine

LONG_S = 20.0


class Fleet(msgspec.Struct, frozen=True, eq=False):
    """Two hosts and the folder that they share. Engines run on the second one."""

    first: FleetHost
    second: FleetHost
    worker: Client
    folder: Path

    def engine(
        self, kinds: Sequence[Group], timeout: float = LONG_S, least: int = 1, ask: float = LONG_S
    ) -> FleetEngine:
        return FleetEngine(self, kinds, FleetLimits(timeout, least, ask))

    def delay(self, seconds: float, what: str = "delay") -> None:
        """Delays all calls of the store, or those that `what` names, from now on."""
        (self.folder / what).write_text(str(seconds))

    def end_delays(self) -> None:
        for name in ("delay", "delay-get"):
            (self.folder / name).unlink(missing_ok=True)
        assert eventually(lambda: self.second.asks, LONG_S), "the breaker is still open"

    @property
    def remote_tokens(self) -> int:
        return self.second.daemon._observer().counts().remote_tokens


class FleetEngine(SimulatedEngine):
    """An engine on the second host."""

    def __init__(self, fleet: Fleet, kinds: Sequence[Group], limits: FleetLimits) -> None:
        super().__init__(fleet.second.daemon, (fleet.second.client, fleet.worker), kinds)
        self.fleet = fleet
        self.half.reads.fleet.limits = limits

    def share(self, prompt: Sequence[int]) -> None:
        """Stores the pages of a prompt on the first host, as the engine there would."""
        one = Request("elsewhere", self._future(prompt), len(prompt), HASHED, len(self.worker.groups))
        self.worker.know(one.block_hashes, one.future)
        pages = 0
        for group in self.worker.groups:
            keys = group.keys(one.block_hashes[group.hashes - 1 :: group.hashes])
            result = self.fleet.first.client.store(keys, list(keys))
            assert result.stored + result.present == len(keys)
            pages += result.stored
        self.fleet.first.wait_shared(pages)

    def arrive(self, name: str, prompt: Sequence[int]) -> Request:
        one = self.submit(name, prompt)
        self.half.arrived(one)
        return one

    def wait(self, name: str) -> int:
        """Asks for a request as vLLM does until it is not delayed, and runs a step. Returns how often it was."""
        delays, one = 0, self.vllm.requests[name]

        def is_matched() -> bool:
            nonlocal delays
            matched = self.half.matched(one, 0) is not None
            delays += not matched
            return matched

        assert eventually(is_matched, LONG_S)
        self.step(loads_end=False)
        return delays

    def run_slowly(self) -> None:
        """Runs until all requests have ended, with time for other processes where all of them are delayed."""

        def is_undelayed() -> bool:
            self.step()
            return not self.vllm.delayed

        eventually(is_undelayed, LONG_S)
        self.run()

    @property
    def counted(self) -> dict[str, int]:
        return self.half.counters.taken()


@contextmanager
def two_hosts(folder: Path, ask: float = LONG_S) -> Iterator[Fleet]:
    folder.mkdir()
    url = f"python://slow_folder_store:SlowFolder{folder}"
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        first = FleetHost(url, stack, *PATIENT)
        asked = ("--remote-ask-timeout", f"{ask}s", "--remote-timeout", "20s")
        second = FleetHost(url, stack, "--remote-write", "never", *asked)
        yield Fleet(first, second, stack.enter_context(second.daemon.client()), folder)
        assert second.daemon.findings() == []
