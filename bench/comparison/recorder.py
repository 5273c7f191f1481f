"""Times operations by the clock and by CPU time, and records which files of pagetier the processes use."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from daemon_setup import Stage
from pagetier.client import Client

_PATIENCE_S = 120.0  # of a busy machine, too
_SAMPLES = 5  # of a turn: few, so that both sides meet the same load of the machine
_SCHEDULED = 2  # CPUCLOCK_SCHED of Linux: the CPU time of all threads


class Recorder:
    """Collects figures.

    Args:
        await_turn: Returns when this process may measure; another process measures while it waits.

    Attributes:
        figures: Seconds by name, a number for each turn.
        files: Files of pagetier that this process has imported, and the C cores of the other processes.
    """

    def __init__(self, await_turn: Callable[[], None]) -> None:
        self._await_turn = await_turn
        self.figures: defaultdict[str, list[float]] = defaultdict(list)
        self.files: set[str] = set()
        self._processes: list[int] = []

    @contextmanager
    def attached(self, stage: Stage) -> Iterator[Client]:
        """Attaches a client to a daemon. From then on, CPU time includes that of the daemon."""
        with Client(stage.socket) as client:
            if not client.wait_attached(_PATIENCE_S):
                raise SystemExit("the daemon did not become ready")
            client.timeout = _PATIENCE_S  # set here because the argument has another name in older commits
            self._watch([os.getpid(), stage.pid])
            yield client

    def include_workers(self, stage: Stage) -> None:
        """Includes the CPU time of the daemon's disk workers, once they serve."""
        self._watch([os.getpid(), stage.pid, *_children(stage.pid)])

    def _watch(self, processes: list[int]) -> None:
        self._processes = processes
        self.files.update(_imported(), *map(_mapped_cores, processes))

    def time(self, name: str, turns: int, action: Callable[[], object], calls: int = 1) -> None:
        """Records the median seconds of an operation, by the clock and of CPU time, for each turn.

        Args:
            name: The operation.
            turns: The number of turns; each has five samples.
            action: One sample.
            calls: How often a sample performs the operation.
        """
        for _ in range(turns):
            self._await_turn()
            samples = [self._sample(action) for _ in range(_SAMPLES)]
            for kind, column in zip(("clock", "CPU"), zip(*samples, strict=True), strict=True):
                self.figures[f"{name}, {kind}"].append(statistics.median(column) / calls)

    def time_once(self, name: str, action: Callable[[], object]) -> None:
        """Records the seconds of a single call, by the clock and of CPU time."""
        self._await_turn()
        wall, cpu = self._sample(action)
        self.figures[f"{name}, clock"].append(wall)
        self.figures[f"{name}, CPU"].append(cpu)

    def cpu_during(self, name: str, action: Callable[[], object]) -> None:
        """Records the CPU time during an action that takes the same time whatever the code does."""
        self._await_turn()
        self.figures[f"{name}, CPU"].append(self._sample(action)[1])

    def _sample(self, action: Callable[[], object]) -> tuple[float, float]:
        cpu, wall = self._cpu_seconds(), time.perf_counter()
        action()
        return time.perf_counter() - wall, self._cpu_seconds() - cpu

    def _cpu_seconds(self) -> float:
        """Returns the CPU time of all processes; clock_getcpuclockid(3) makes the same clock IDs."""
        return sum(time.clock_gettime(~process << 3 | _SCHEDULED) for process in self._processes)


def _children(process: int) -> list[int]:
    lists = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for children in lists for child in children.read_text().split()]


def _imported() -> set[str]:
    modules = [module for name, module in sys.modules.items() if name.startswith("pagetier.")]
    return {file for module in modules if (file := getattr(module, "__file__", None))}


def _mapped_cores(process: int) -> set[str]:
    """Returns the C cores that a process has mapped.

    Raises:
        SystemExit: If there is none, so that nothing proves which files the process uses.
    """
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    cores = {line.split(maxsplit=5)[5] for line in lines if "/_core.abi3.so" in line}
    if not cores:
        raise SystemExit(f"process {process} has not loaded pagetier's C core")
    return cores
