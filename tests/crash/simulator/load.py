"""Runs as many engines as there are slots for a while, and judges the responses that they got."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from eventually import Stopwatch, eventually
from oracle.checker import Kind
from oracle.journal import Reported, read_journals
from pagetier.client import Client
from pagetier.shm._core import SLOTS
from pagetier.shm.daemon_link import Link, RefusedError
from pagetier.shm.protocol import BUILD, Attach
from simulator.call_times import latencies, read_times
from simulator.report import Results
from simulator.scenes import SimulatedScene
from simulator.simulation import Simulation
from simulator.tally import Tally

SHARE: Final = 0.1
"""The share of the mean below which an engine with fewer stored or loaded pages starves."""

_PATIENCE_S: Final = 60.0
_ANSWER_S: Final = 10.0
_LONGEST_S: Final = 300.0
_SHARED: Final = (Reported.STORED, Reported.LOADED)


class Shares(msgspec.Struct, frozen=True):
    """What the engines got.

    Attributes:
        pages: The number of pages stored and loaded during the measurement, by process.
        refused: The number of pages whose store was rejected, during the whole run.
        reasons: Why.
    """

    pages: Mapping[Reported, Mapping[int, int]]
    refused: int
    reasons: list[str]


class Load(Simulation):
    """A load test. It ends after `seconds`, and when the mean engine has had `requests` requests."""

    def __init__(
        self, scene: SimulatedScene, seconds: float, seed: int, show: Callable[[Tally], None], *, requests: int
    ) -> None:
        super().__init__(scene, seconds, seed, show)
        self._requests = requests
        self._began = self._ended = 0.0
        self.refusal = ""
        self.pages: dict[str, list[int]] = {}

    def results(self) -> Results:
        """Returns what the report shows."""
        times = read_times(self.folder)
        notes = [f"One engine too many got the response: {self.refusal or 'none'}.\n"]
        measured = times[(times["at"] >= self._began) & (times["at"] < self._ended)]
        return Results(notes=notes, latencies=latencies(measured), pages=self.pages)

    def _live(self) -> None:
        steps = self.cluster.heartbeats
        self._wait(_PATIENCE_S, lambda: all(steps.steps[: self.scene.engines]))
        self._try_one_too_many()
        enough = self._requests * self.scene.engines + sum(steps.steps)
        self._began = time.monotonic()
        ends = self._began + self.seconds
        self._pass_time(lambda: time.monotonic() >= ends)
        self._wait(_LONGEST_S, lambda: sum(steps.steps) >= enough)
        self._ended = time.monotonic()
        self._try_slot_of_the_dead()

    def _tick(self, now: float) -> None:
        """Ends the run if an engine has ended."""
        if self.tally.violations:
            raise RuntimeError("an engine has ended or hangs")

    def _wait(self, seconds: float, condition: Callable[[], bool]) -> None:
        """Waits for a condition. Raises RuntimeError if it takes too long."""
        watch = Stopwatch()
        self._pass_time(lambda: condition() or watch.seconds > seconds)
        if not condition():
            raise RuntimeError(f"after {seconds:.0f} s, the engines have served {self.cluster.heartbeats.steps}")

    def _try_one_too_many(self) -> None:
        """Notes the response to one engine too many, if there are no free slots. An accepted one is a violation."""
        if self.scene.engines < SLOTS:
            return
        link = Link(self.cluster.daemon.socket, _ANSWER_S)
        try:
            link.greet(Attach(BUILD, 1, "one too many"), _ANSWER_S)
            self.cluster.violation(Kind.SLOT, f"an engine could attach although {SLOTS} are attached")
        except RefusedError as error:
            self.refusal = str(error)
        finally:
            link.close()

    def _try_slot_of_the_dead(self) -> None:
        """Kills one engine, whose slot another process gets; it is a violation if it does not."""
        self.cluster.kill_engine()
        latecomer = self.cluster.processes.compute("latecomer", self._attaches)

        def is_over() -> bool:
            self.cluster.maintain(time.monotonic())
            return not latecomer.lives

        eventually(is_over, _LONGEST_S)
        if not msgspec.json.decode(self.cluster.processes.computed(latecomer)):
            self.cluster.violation(Kind.SLOT, "an engine died, and its slot was not reused")

    def _attaches(self) -> bool:
        with Client(self.cluster.daemon.socket) as client:
            return client.wait_attached(_PATIENCE_S)

    def audit(self) -> None:
        super().audit()
        journals, began, ended = self.chapters.newest(), self._began, self._ended
        found = self.cluster.processes.result("counter", lambda: shares(journals, began, ended))
        self.judge(msgspec.json.decode(found, type=Shares))

    def judge(self, found: Shares) -> None:
        """Notes rejected stores and starving engines as violations, and the numbers of pages of each engine."""
        if found.refused:
            reasons = "; ".join(found.reasons)
            self.cluster.violation(Kind.REFUSED, f"{found.refused} pages, although all of them fit: {reasons}")
        for reported, pages in found.pages.items():
            self.pages[reported] = sorted(pages.values())
            mean = sum(pages.values()) / len(pages)
            pid = min(pages, key=pages.__getitem__)
            if pages[pid] < SHARE * mean:
                self.cluster.violation(Kind.STARVED, f"{pages[pid]} pages {reported}, the mean is {mean:.0f}", pid)


def shares(journals: Path, began: float, ended: float) -> Shares:
    """Returns what the engines got. The measurement began and ended at these times, CLOCK_MONOTONIC in seconds."""
    records = read_journals(journals)
    engines = {record.pid for record in records if record.reported is Reported.STORING}
    pages = {reported: dict.fromkeys(engines, 0) for reported in _SHARED}
    refused, reasons = 0, set()
    for record in records:
        if record.reported is Reported.REFUSED:
            refused += len(list(record.each()))
            reasons.add(record.note)
        elif record.reported in _SHARED and began <= record.at / 1e9 < ended:
            pages[record.reported][record.pid] += sum(1 for _ in record.each())
    return Shares(pages, refused, sorted(reasons))
