"""Runs a scene: a start, some time with events, the death of all engines, and an audit of the cache."""

from __future__ import annotations

import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from eventually import Stopwatch, pace
from oracle.checker import Kind
from oracle.samples import Sample, taken
from simulator.chapters import Chapters
from simulator.cluster import Cluster
from simulator.final_audit import FinalAudit
from simulator.leftovers import prefix_of_this_process
from simulator.scenes import SimulatedScene
from simulator.schedule import Schedule, WorkClock
from simulator.tally import Tally

TICK_S: Final = 0.005
_SAMPLE_S: Final = 0.05
_WARM_S: Final = 60.0


class Simulation(ABC):
    """A run of one scene. As a context manager it leaves no process and no shared memory behind.

    Args:
        scene: The configuration of the cache and its events.
        seconds: The duration of the events, by the clock of the scene, without the warm-up and the final audit.
        seed: The seed of the planned events.
        show: Takes the counts so far, often.
    """

    def __init__(self, scene: SimulatedScene, seconds: float, seed: int, show: Callable[[Tally], None]) -> None:
        self.scene = scene = scene.drawn(seed)
        self.seconds = seconds
        self.seed = seed
        self.tally = Tally(rounds=1)
        self._show = show
        self._folder = tempfile.TemporaryDirectory(prefix=prefix_of_this_process(), ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        self.chapters = Chapters(self.folder)
        self.cluster = Cluster(scene, self.folder, self.chapters, seed, self.tally)
        self._schedule = Schedule(self.cluster.rng)
        self._clock = WorkClock(scene.steps, time.monotonic())
        self._next_sample = 0.0
        self._peak = Sample(at=0, arena=0)
        self._gone_before = 0

    def run(self) -> Tally:
        """Runs the scene and returns its counts."""
        watch = Stopwatch()
        try:
            self.cluster.start()
            self._live()
            self.cluster.end_engines()
            self.audit()
        except RuntimeError as error:
            self.cluster.violation(Kind.HANG, str(error))
        self.tally.seconds = watch.seconds
        return self.sum_up()

    def sum_up(self) -> Tally:
        """Adds what other objects have counted, and returns all counts."""
        cluster, tally = self.cluster, self.tally
        tally.returned += cluster.slot_reuse.returned
        tally.violations += cluster.slot_reuse.violations
        tally.adoptions += cluster.daemon.adoptions
        tally.bytes_verified = cluster.heartbeats.bytes
        if self.scene.disk:
            tally.disk_use.append(self._peak.disk / self.scene.disk)
        return tally

    def keep_journals(self, folder: Path) -> None:
        """Copies the journals to a folder."""
        for chapter in self.folder.glob("chapter-*"):
            shutil.copytree(chapter, folder / chapter.name)

    @abstractmethod
    def _live(self) -> None:
        """Runs everything between the start and the death of all engines.

        Raises RuntimeError if something hangs, so that the cache cannot be audited.
        """

    @abstractmethod
    def _tick(self, now: float) -> None:
        """Does what the scene does all the time. Raises RuntimeError as _live()."""

    def _pass_time(self, is_over: Callable[[], bool]) -> None:
        """Runs the cluster and the planned events until a condition is true."""
        while not is_over():
            self.step(time.monotonic())
            pace(TICK_S)

    def step(self, now: float) -> None:
        """Does all that is due. Raises RuntimeError as _live()."""
        self._tick(now)
        self.cluster.maintain(now)
        self.cluster.start_missing()
        self.tally.steps = sum(self.cluster.heartbeats.steps)
        self._schedule.run_due(self._clock.advance(now, self.tally.steps))
        if now >= self._next_sample:
            self._next_sample = now + _SAMPLE_S
            self._sample()
        self._show(self.tally)

    def _sample(self) -> None:
        """Notes the largest numbers of bytes in use, the evictions, and the slots of dead processes."""
        now = taken(self.cluster.observer, self.cluster.daemon.name, self.cluster.daemon.disk)
        most = {name: max(getattr(now, name), getattr(self._peak, name)) for name in ("arena", "shm", "disk")}
        self._peak = Sample(at=now.at, **most)
        self.tally.samples += 1
        self.cluster.evictions.sample()
        self.cluster.check_slots(time.monotonic())

    def audit(self) -> None:
        """Audits the cache, judges the journals of the last chapter, and stops the daemon."""
        journals = self.chapters.path(self.chapters.number)
        final_audit = FinalAudit(self.cluster, journals, gone_before=self._gone_before)
        verdict = final_audit.judge(self._peak)
        self.tally.responses.update(verdict.responses)
        self.tally.pages["missed"] += verdict.missed
        self.tally.violations += [*verdict.violations, *final_audit.stop()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.end()
        self._folder.cleanup()


class Round(Simulation):
    """A round of random deaths."""

    def _live(self) -> None:
        scene, cluster, self._began = self.scene, self.cluster, self._clock.now
        self._schedule.add(cluster.kill_engine, scene.engine_death, self._began)
        self._schedule.add(cluster.stop_random_process, scene.stop, self._began)
        self._pass_time(lambda: self._is_warm() or self._clock.now > self._began + _WARM_S)
        warm = self._clock.now
        self._schedule.add(cluster.kill_daemon, scene.daemon_death, warm)
        self._schedule.add(cluster.request_worker_death, scene.worker_death, warm)
        self._pass_time(lambda: self._clock.now > warm + self.seconds)

    def _tick(self, now: float) -> None:
        newest = (self._clock.now - self._began) / self.seconds * (self.scene.prompts - 1)
        self.cluster.heartbeats.newest = min(self.scene.prompts - 1, int(newest))

    def _is_warm(self) -> bool:
        header = self.cluster.observer.header()
        read = header.disk_read > 0 or self.scene.roomy or not self.scene.warm
        return header.disk_written >= self.scene.warm and read
