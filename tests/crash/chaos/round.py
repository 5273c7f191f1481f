"""Runs one round: engines and a daemon are killed at random moments, then the cache is audited (final_audit.py)."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from chaos.cleanup import prefix_of_this_process
from chaos.cluster import Cluster
from chaos.engine import EngineContext
from chaos.eviction_accounting import EvictionAccounting
from chaos.final_audit import FinalAudit, await_daemon, await_disk
from chaos.random_schedule import Schedule
from chaos.round_counts import Tally
from chaos.scenario import Scene
from oracle.checker import Kind
from oracle.samples import Sample, taken

_TICK_S: Final = 0.003
_SAMPLE_S: Final = 0.05
_WARM_S: Final = 60.0


class Round:
    """One round in a scene. As a context manager it leaves no process and no shared memory behind.

    `seconds` is the duration of the random deaths, without the final audit.
    """

    def __init__(self, scene: Scene, seconds: float, seed: int) -> None:
        self.scene = scene
        self.tally = Tally(rounds=1)
        self._folder = tempfile.TemporaryDirectory(prefix=prefix_of_this_process(), ignore_cleanup_errors=True)
        self.journals = Path(self._folder.name)
        self._rng = random.Random(seed)
        self._cluster = Cluster(scene, self.journals, self._rng, self.tally)
        self._seconds = seconds
        self._seed = seed
        self._samples: list[Sample] = []

    def run(self, progress: Callable[[Tally], None]) -> Tally:
        """Runs the round and returns its counts; calls `progress` with the counts so far, often."""
        began = time.monotonic()
        try:
            self._live(progress)
        except RuntimeError as error:
            self._cluster.violation(Kind.HANG, str(error))
        self.tally.returned += self._cluster.slot_reuse.returned
        self.tally.violations += self._cluster.slot_reuse.violations
        self.tally.adoptions += self._cluster.daemon.adoptions
        self.tally.samples, self.tally.steps = len(self._samples), self._cluster.heartbeats.steps
        self.tally.bytes_verified = self._cluster.heartbeats.bytes
        if self.scene.disk:
            self.tally.disk_use.append(max((sample.disk for sample in self._samples), default=0) / self.scene.disk)
        self.tally.seconds = time.monotonic() - began
        return self.tally

    def _live(self, progress: Callable[[Tally], None]) -> None:
        """Runs all stages of the round. Raises RuntimeError if a stage hangs, so that the cache cannot be audited."""
        self._cluster.daemon.start_daemon()
        await_daemon(self._cluster.daemon, self._cluster.processes)
        if self.scene.disk:
            await_disk(self._cluster.daemon)
        self._observer = self._cluster.daemon.observer()
        self._evictions = EvictionAccounting(self._observer)
        self._kill_at_random(progress)
        self._cluster.end_engines(self._observer)
        final_audit = FinalAudit(
            self.scene, self._cluster.daemon, self._cluster.processes, self._evictions, self.journals, self._seed
        )
        verdict = final_audit.judge(self.tally, self._samples)
        self.tally.responses.update(verdict.responses)
        self.tally.pages["missed"] += verdict.missed
        self.tally.violations += [*verdict.violations, *final_audit.stop()]

    def _kill_at_random(self, progress: Callable[[Tally], None]) -> None:
        scene, now = self.scene, time.monotonic()
        context = EngineContext(
            scene,
            self._cluster.daemon.socket,
            self.journals,
            self._cluster.heartbeats,
            now,
            now + self._seconds,
            self._seed,
        )
        self._cluster.use_engines(context)
        schedule = Schedule(self._rng, now)
        schedule.add(self._cluster.kill_engine, scene.engine_death)
        schedule.add(self._cluster.stop_random_process, scene.stop)
        schedule.add(self._sample, _SAMPLE_S)
        self._pass_time(schedule, now + _WARM_S, progress, self._is_warm)
        later = time.monotonic() - now
        schedule.add(self._cluster.kill_daemon, scene.daemon_death, later)
        schedule.add(self._cluster.request_worker_death, scene.worker_death, later)
        self._pass_time(schedule, now + later + self._seconds, progress, lambda: False)

    def _pass_time(
        self, schedule: Schedule, ends: float, progress: Callable[[Tally], None], enough: Callable[[], bool]
    ) -> None:
        """Runs the cluster until `ends`, or until `enough` returns True."""
        while (now := time.monotonic()) < ends and not enough():
            self._cluster.maintain(now)
            self._cluster.start_missing()
            schedule.run_due(now)
            progress(self.tally)
            time.sleep(_TICK_S)

    def _is_warm(self) -> bool:
        if not self.scene.warm:
            return True
        header = self._observer.header()
        return header.disk_written >= self.scene.warm and (self.scene.roomy or header.disk_read > 0)

    def _sample(self) -> None:
        disk = self._cluster.daemon.disk if self.scene.disk else None
        self._samples.append(taken(self._observer, self._cluster.daemon.name, disk))
        self._evictions.sample()
        self._cluster.check_slots(time.monotonic(), self._observer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.end()
        self._folder.cleanup()
