"""Runs as many engines as there are slots for a while, and judges the responses that they got."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
import numpy as np

from chaos.child_processes import Child, ChildProcesses
from chaos.cleanup import prefix_of_this_process
from chaos.daemons import ChaosDaemon
from chaos.final_audit import await_daemon
from chaos.scenario import MIB, Scene
from load.cpu_share import CpuTimes, turns_of
from load.engine import BusyEngine, Call, LoadContext, reasons
from load.shared_counters import Column, Numbers, SharedCounters
from oracle.checker import Kind, Losses, Violation, findings
from oracle.journal import read_journals
from oracle.samples import Caps, Sample, end_of, segments_bytes, taken
from pagetier.client import Client
from pagetier.shm._core import SLOTS
from pagetier.shm.daemon_link import Link, RefusedError
from pagetier.shm.protocol import BUILD, Attach
from running_daemon import eventually
from soak.latency_histogram import Times, longest, quantile

SHARE: Final = 0.1
"""The share of the mean below which an engine with fewer stored or loaded pages starves."""

_SCENE: Final = Scene(name="load", arena=256 * MIB, prompts=0, roomy=False, expiry=60.0)

_TICK_S: Final = 0.02
_SAMPLE_S: Final = 0.25
_PATIENCE_S: Final = 60.0
_ANSWER_S: Final = 10.0
_LONGEST_S: Final = 300.0


class Latency(msgspec.Struct, frozen=True):
    """The durations of one kind of call, in milliseconds."""

    call: str
    count: int
    p50: float
    p99: float
    most: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the JSON output. Lists have one number of pages for each process.

    Attributes:
        seconds: The duration of the measurement.
        daemon: The share of a core that the daemon had, and the share of time that it waited for one.
        processes: The same for all engines together.
        refusal: The response to one engine too many.
        violations: The broken promises.
        wrongs: Other failures: starved engines, rejected stores and wrong slots.
    """

    seed: int
    engines: int
    seconds: float
    requests: list[int]
    stored: list[int]
    loaded: list[int]
    present: int
    pending: int
    refused: int
    evicted: int
    daemon: CpuTimes
    processes: CpuTimes
    latencies: list[Latency]
    refusal: str
    violations: list[Violation]
    wrongs: list[str]

    @property
    def failed(self) -> bool:
        """Whether a promise was broken or another failure was found."""
        return bool(self.violations or self.wrongs)


class Load:
    """A load test. As a context manager it leaves no process and no shared memory behind.

    `nice` is the nice value of the engines.
    """

    def __init__(self, engines: int, seed: int, nice: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=prefix_of_this_process(), ignore_cleanup_errors=True)
        self._journals = Path(self._folder.name)
        self._processes = ChildProcesses(self._journals)
        self._daemon = ChaosDaemon(_SCENE, self._processes)
        self._engines: list[Child] = []
        self._times = Times(engines, len(Call))
        self._counters = SharedCounters(engines)
        self._samples: list[Sample] = []
        self._count = engines
        self._seed = seed
        self._nice = nice
        self._wrongs: list[str] = []

    def run(self, seconds: float, requests: int) -> Outcome:
        """Runs the test for `seconds`, and until the mean engine has had `requests` requests.

        Returns:
            The result. RuntimeError is raised if an engine ended or the requests took too long.
        """
        self._daemon.start_daemon()
        await_daemon(self._daemon, self._processes)
        self._observer = self._daemon.observer()
        self._start()
        self._pass_time(_PATIENCE_S, lambda: bool(np.all(self._counters.numbers()[:, Column.REQUESTS])))
        refusal = self._one_too_many()
        counters, times, evicted = self._counters.numbers(), self._times.counts(), self._observer.header().evicted
        began, daemon, processes = time.monotonic(), *self._turns()
        self._pass_time(seconds, lambda: False)
        self._pass_time(_LONGEST_S, lambda: self._requests() >= requests + counters[:, Column.REQUESTS].mean())
        took = time.monotonic() - began
        daemon, processes = (
            now.since(then, took) for now, then in zip(self._turns(), (daemon, processes), strict=True)
        )
        done, timed = self._counters.numbers() - counters, self._times.counts() - times
        evicted = self._observer.header().evicted - evicted
        self._end()
        self._judge_shares(done)
        return Outcome(
            seed=self._seed,
            engines=self._count,
            seconds=round(took, 2),
            requests=done[:, Column.REQUESTS].tolist(),
            stored=done[:, Column.STORED].tolist(),
            loaded=done[:, Column.LOADED].tolist(),
            present=int(done[:, Column.PRESENT].sum()),
            pending=int(done[:, Column.PENDING].sum()),
            refused=int(done[:, Column.REFUSED].sum()),
            evicted=evicted,
            daemon=daemon,
            processes=processes,
            latencies=[_latency(call, timed) for call in Call],
            refusal=refusal,
            violations=self._judged(),
            wrongs=self._wrongs,
        )

    def _requests(self) -> float:
        """Returns the number of requests of the mean engine so far."""
        return float(self._counters.numbers()[:, Column.REQUESTS].mean())

    def _turns(self) -> list[CpuTimes]:
        """Returns the processor times of the daemon and of all engines."""
        serving = self._daemon.serving
        daemon = turns_of(serving.pid) if serving else CpuTimes()
        return [daemon, sum((turns_of(child.pid) for child in self._engines), start=CpuTimes())]

    def _start(self) -> None:
        for seat in range(self._count):
            where = (self._daemon.socket, self._journals, self._times, self._counters)
            context = LoadContext(*where, self._seed, seat, self._count, self._nice)
            self._engines.append(self._processes.fork("engine", partial(_work, context), seat))

    def _pass_time(self, seconds: float, enough: Callable[[], bool]) -> None:
        """Waits for `seconds` and until `enough`.

        Raises:
            RuntimeError: An engine ended, or the condition was not met in time.
        """
        ends, due = time.monotonic() + seconds, 0.0
        while (now := time.monotonic()) < ends and not enough():
            for child in self._processes.reap():
                raise RuntimeError(f"the {child.role} ended with {child.code}: {self._processes.last_output(child)}")
            if now >= due:
                due = now + _SAMPLE_S
                self._samples.append(taken(self._observer, self._daemon.name))
            time.sleep(_TICK_S)

    def _one_too_many(self) -> str:
        """Returns the response to one engine too many; "" if there are free slots."""
        if self._count < SLOTS:
            return ""
        link = Link(self._daemon.socket, _ANSWER_S)
        try:
            link.greet(Attach(BUILD, 1, "one too many"), _ANSWER_S)
        except RefusedError as error:
            return str(error)
        finally:
            link.close()
        self._wrongs.append(f"an engine could attach although {SLOTS} are attached")
        return ""

    def _end(self) -> None:
        """Kills one engine, whose slot the rejected one gets; then kills all."""
        with Client(self._daemon.socket) as waiting:
            self._processes.kill(self._engines[0])
            if not waiting.wait_attached(_PATIENCE_S):
                self._wrongs.append("an engine died, and its slot was not reused")
        for child in self._engines:
            self._processes.kill(child)
        for child in self._engines:
            self._processes.wait(child)

    def _judge_shares(self, done: Numbers) -> None:
        """Records rejected stores and engines that starve."""
        refused = int(self._counters.numbers()[:, Column.REFUSED].sum())
        if refused:
            why = "; ".join(sorted(set(reasons(self._journals))))
            self._wrongs.append(f"{refused} pages were rejected although all of them fit: {why}")
        for column in (Column.STORED, Column.LOADED):
            pages = done[:, column]
            if pages.min() < SHARE * pages.mean():
                of_all = f"the mean is {pages.mean():.0f}"
                self._wrongs.append(f"engine {pages.argmin()} has {pages.min()} pages {column.name.lower()}, {of_all}")

    def _judged(self) -> list[Violation]:
        """Returns the oracle's violations, from a child because reading journals uses much memory."""
        eventually(lambda: not self._daemon.slots(), _PATIENCE_S)
        header, end = self._observer.header(), end_of(self._daemon)
        caps = Caps(arena=_SCENE.arena, shm=segments_bytes(self._observer))
        path = self._journals / "verdict"

        def judge() -> None:
            records = read_journals(self._journals)
            gone = Losses(at_most=header.evicted)
            found = findings(records, may_go=gone, samples=self._samples, caps=caps, end=end)
            path.write_bytes(msgspec.json.encode(found))

        child = self._processes.fork("judge", judge)
        self._processes.wait(child, 4 * _PATIENCE_S)
        if child.code != 0:
            raise RuntimeError(f"the journals cannot be judged: {self._processes.last_output(child)}")
        complaints = [Violation(Kind.CRASH, f"a daemon wrote {line}") for line in self._daemon.complaints()]
        return msgspec.json.decode(path.read_bytes(), type=list[Violation]) + complaints

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.end()
        self._daemon.remove()
        self._folder.cleanup()


def _work(context: LoadContext) -> None:
    BusyEngine(context).run()


def _latency(call: Call, timed: np.ndarray) -> Latency:
    counts = timed[call]
    p50, p99 = (round(1e3 * quantile(counts, share), 4) for share in (0.5, 0.99))
    return Latency(call.name.lower(), int(counts.sum()), p50, p99, round(1e3 * longest(counts), 3))
