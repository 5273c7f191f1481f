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
from chaos.cluster import Populace
from chaos.engine import Post
from chaos.eviction_accounting import Leaving
from chaos.final_audit import Ending, await_daemon, await_disk
from chaos.random_schedule import Fates
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
        self._all = Populace(scene, self.journals, self._rng, self.tally)
        self._seconds = seconds
        self._seed = seed
        self._samples: list[Sample] = []

    def run(self, progress: Callable[[Tally], None]) -> Tally:
        """Runs the round and returns its counts; calls `progress` with the counts so far, often."""
        began = time.monotonic()
        try:
            self._live(progress)
        except RuntimeError as error:
            self._all.violation(Kind.HANG, str(error))
        self.tally.returned += self._all.mourning.returned
        self.tally.violations += self._all.mourning.violations
        self.tally.adoptions += self._all.daemon.adoptions
        self.tally.samples, self.tally.steps = len(self._samples), self._all.seats.steps
        self.tally.bytes_verified = self._all.seats.bytes
        if self.scene.disk:
            self.tally.disk_use.append(max((sample.disk for sample in self._samples), default=0) / self.scene.disk)
        self.tally.seconds = time.monotonic() - began
        return self.tally

    def _live(self, progress: Callable[[Tally], None]) -> None:
        """Runs all stages of the round. Raises RuntimeError if a stage hangs, so that the cache cannot be audited."""
        self._all.daemon.light()
        await_daemon(self._all.daemon, self._all.family)
        if self.scene.disk:
            await_disk(self._all.daemon)
        self._observer = self._all.daemon.observer()
        self._leaving = Leaving(self._observer)
        self._storm(progress)
        self._all.calm(self._observer)
        ending = Ending(self.scene, self._all.daemon, self._all.family, self._leaving, self.journals, self._seed)
        verdict = ending.judge(self.tally, self._samples)
        self.tally.told.update(verdict.told)
        self.tally.pages["missed"] += verdict.missed
        self.tally.violations += [*verdict.violations, *ending.stop()]

    def _storm(self, progress: Callable[[Tally], None]) -> None:
        scene, now = self.scene, time.monotonic()
        post = Post(
            scene, self._all.daemon.socket, self.journals, self._all.seats, now, now + self._seconds, self._seed
        )
        self._all.hire(post)
        fates = Fates(self._rng, now)
        fates.add(self._all.kill_engine, scene.engine_death)
        fates.add(self._all.stop_somebody, scene.stop)
        fates.add(self._sample, _SAMPLE_S)
        self._pass_time(fates, now + _WARM_S, progress, self._is_warm)
        later = time.monotonic() - now
        fates.add(self._all.kill_daemon, scene.daemon_death, later)
        fates.add(self._all.condemn_worker, scene.worker_death, later)
        self._pass_time(fates, now + later + self._seconds, progress, lambda: False)

    def _pass_time(
        self, fates: Fates, ends: float, progress: Callable[[Tally], None], enough: Callable[[], bool]
    ) -> None:
        """Runs the cluster until `ends`, or until `enough` returns True."""
        while (now := time.monotonic()) < ends and not enough():
            self._all.tend(now)
            self._all.man()
            fates.pass_on(now)
            progress(self.tally)
            time.sleep(_TICK_S)

    def _is_warm(self) -> bool:
        if not self.scene.warm:
            return True
        header = self._observer.header()
        return header["disk_written"] >= self.scene.warm and (self.scene.roomy or header["disk_read"] > 0)

    def _sample(self) -> None:
        disk = self._all.daemon.disk if self.scene.disk else None
        self._samples.append(taken(self._observer, self._all.daemon.name, disk))
        self._leaving.look()
        self._all.mourn(time.monotonic(), self._observer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._all.end()
        self._folder.cleanup()
