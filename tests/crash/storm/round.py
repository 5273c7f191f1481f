"""One round: a scene, a crew, a daemon, and death at any moment; then all is looked at and judged (ending.py)."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from oracle.checker import Kind, Violation
from oracle.samples import Sample, taken

from .crew import SEATS, Crew
from .daemons import StormDaemon
from .ending import Ending, await_daemon, await_disk
from .engine import Post
from .family import Child, Family
from .fates import Fates
from .leaving import Leaving
from .remains import prefix_of_this_process
from .scene import Scene
from .seats import Seats
from .slots import Mourning
from .tally import Tally

_TICK_S: Final = 0.003
_SAMPLE_S: Final = 0.05
_STOPPED_S: Final = 0.4
_DARK_S: Final = 0.15
_HANGS_S: Final = 15.0
_CALM_S: Final = 20.0
_WARM_S: Final = 60.0


class Round:
    """As a context manager it leaves no process and no shared memory behind. seconds: of death, before the ending."""

    def __init__(self, scene: Scene, seconds: float, seed: int) -> None:
        self.scene = scene
        self.tally = Tally(rounds=1)
        self._folder = tempfile.TemporaryDirectory(prefix=prefix_of_this_process(), ignore_cleanup_errors=True)
        self.journals = Path(self._folder.name)
        self._family = Family(self.journals)
        self._daemon = StormDaemon(scene, self._family)
        self._rng = random.Random(seed)
        self._seconds = seconds
        self._seed = seed
        self._seats = Seats(SEATS)
        self._mourning = Mourning()
        self._samples: list[Sample] = []
        self._dark_until = 0.0
        self._stopped: list[Child] = []
        self._condemned = False
        self._workers_killed: set[int] = set()

    def run(self, progress: Callable[[Tally], None]) -> Tally:
        """All of it; progress is told how far it is, some hundred times a second."""
        began = time.monotonic()
        try:
            self._live(progress)
        except RuntimeError as error:
            self._violation(Kind.HANG, str(error))
        self.tally.returned += self._mourning.returned
        self.tally.violations += self._mourning.violations
        self.tally.adoptions += self._daemon.adoptions
        self.tally.samples, self.tally.steps = len(self._samples), self._seats.steps
        self.tally.bytes_verified = self._seats.bytes
        if self.scene.disk:
            self.tally.disk_use.append(max((sample.disk for sample in self._samples), default=0) / self.scene.disk)
        self.tally.seconds = time.monotonic() - began
        return self.tally

    def _live(self, progress: Callable[[Tally], None]) -> None:
        """Raises RuntimeError where something can not even be looked at, as it does not get on."""
        self._daemon.light()
        await_daemon(self._daemon, self._family)
        if self.scene.disk:
            await_disk(self._daemon)
        self._observer = self._daemon.observer()
        self._leaving = Leaving(self._observer)
        self._storm(progress)
        self._calm()
        ending = Ending(self.scene, self._daemon, self._family, self._leaving, self.journals, self._seed)
        verdict = ending.judge(self.tally, self._samples)
        self.tally.told.update(verdict.told)
        self.tally.pages["missed"] += verdict.missed
        self.tally.violations += [*verdict.violations, *ending.stop()]

    def _storm(self, progress: Callable[[Tally], None]) -> None:
        scene, now = self.scene, time.monotonic()
        post = Post(scene, self._daemon.socket, self.journals, self._seats, now, now + self._seconds, self._seed)
        self._crew = Crew(self._family, post, self._rng)
        fates = Fates(self._rng, now)
        fates.add(self._kill_engine, scene.engine_death)
        fates.add(self._stop_somebody, scene.stop)
        fates.add(self._sample, _SAMPLE_S)
        self._pass_time(fates, now + _WARM_S, progress, self._is_warm)
        later = time.monotonic() - now
        fates.add(self._kill_daemon, scene.daemon_death, later)
        fates.add(self._condemn_worker, scene.worker_death, later)
        self._pass_time(fates, now + later + self._seconds, progress, lambda: False)

    def _pass_time(
        self, fates: Fates, ends: float, progress: Callable[[Tally], None], enough: Callable[[], bool]
    ) -> None:
        """Until then, or until it is enough."""
        while (now := time.monotonic()) < ends and not enough():
            self._tend(now)
            self._man()
            fates.pass_on(now)
            progress(self.tally)
            time.sleep(_TICK_S)

    def _is_warm(self) -> bool:
        if not self.scene.warm:
            return True
        header = self._observer.header()
        return header["disk_written"] >= self.scene.warm and (self.scene.roomy or header["disk_read"] > 0)

    def _tend(self, now: float) -> None:
        """What is to be done all the time: ends are noted, who stood still goes on, there is a daemon."""
        for child in self._family.reap():
            self._note_end(child, now)
        for child in [child for child in self._stopped if child.stopped <= now]:
            self._go_on(child)
        if self._condemned:
            self._kill_worker()
        if not self._daemon.look():
            self._mourning.no_daemon()
            if not self._daemon.children and now >= self._dark_until:
                self._light()

    def _man(self) -> None:
        for child in self._crew.man():
            self.tally.lives[child.role] += 1
        for child in self._crew.living:
            if not child.killed and not child.stopped and self._seats.silent(child.seat) > _HANGS_S:
                self._violation(Kind.HANG, f"{child.role} did nothing for {_HANGS_S} s", child.pid)
                self._kill(child)

    def _light(self) -> None:
        """A new daemon; now and then two at once, of which one must be refused."""
        for role in ["daemon", *(["daemon beside another"] if self._rng.random() < 0.1 else [])]:
            self._daemon.light()
            self.tally.lives[role] += 1

    def _note_end(self, child: Child, now: float) -> None:
        if child.role == "daemon":
            well = self._daemon.ended_well(child)
        else:
            self._mourning.died(child.pid, now)
            well = child.hit or child.code == 0
        if not well:
            why = self._family.last_words(child)
            self._violation(Kind.CRASH, f"{child.role} ended with {child.code}: {why}", child.pid)
        elif not child.killed:
            self.tally.deaths[f"{child.role}, by itself"] += 1

    def _kill(self, child: Child) -> None:
        if child.lives and not child.killed:
            self._family.kill(child)
            self.tally.deaths[child.role] += 1

    def _kill_engine(self) -> None:
        living = [child for child in self._crew.living if not child.killed]
        if living:
            self._kill(self._rng.choice(living))

    def _kill_daemon(self) -> None:
        """Whoever serves, or is on the way to it."""
        for child in self._daemon.children:
            self._kill(child)
        self._dark_until = time.monotonic() + self._rng.choice((0.0, self._rng.uniform(0, _DARK_S)))

    def _condemn_worker(self) -> None:
        """The disk worker dies now or, where there is none, as soon as there is one."""
        self._condemned = True

    def _kill_worker(self) -> None:
        pid = self._daemon.worker()
        if pid and pid not in self._workers_killed:
            self._condemned = False
            self._workers_killed.add(pid)
            os.kill(pid, signal.SIGKILL)
            self.tally.deaths["disk worker"] += 1

    def _stop_somebody(self) -> None:
        """An engine's process or the daemon stands still for a while."""
        daemons = [self._daemon.serving] if self._daemon.serving else []
        everybody = [*self._crew.living, *daemons * 3]
        able = [child for child in everybody if child.lives and not child.killed and not child.stopped]
        if able:
            child = self._rng.choice(able)
            child.stopped = time.monotonic() + self._rng.uniform(0, _STOPPED_S)
            self._stopped.append(child)
            if child is self._daemon.serving:
                self._mourning.stands(time.monotonic())
            self._family.signal(child, signal.SIGSTOP)
            self.tally.stops[child.role] += 1

    def _go_on(self, child: Child) -> None:
        self._stopped.remove(child)
        child.stopped = 0.0
        self._family.signal(child, signal.SIGCONT)

    def _sample(self) -> None:
        disk = self._daemon.disk if self.scene.disk else None
        self._samples.append(taken(self._observer, self._daemon.name, disk))
        self._leaving.look()
        self._mourn(time.monotonic())

    def _mourn(self, now: float) -> None:
        serving = self._daemon.serving
        if serving is None:
            self._mourning.no_daemon()
        elif serving.stopped:
            self._mourning.stands(now)
        else:
            self._mourning.look(serving.pid, {slot["pid"] for slot in self._observer.slots()}, now)

    def _calm(self) -> None:
        """All engines die at once; a daemon lives, and takes back what they held.

        Raises RuntimeError if that takes for ever.
        """
        for child in list(self._stopped):
            self._go_on(child)
        for child in self._crew.living:
            self._kill(child)
        ends = time.monotonic() + _CALM_S
        while self._crew.living or self._mourning.waits:
            now = time.monotonic()
            if now > ends:
                raise RuntimeError(f"the dead still have slots after {_CALM_S} s: {self._daemon.last_words()}")
            self._tend(now)
            self._mourn(now)
            time.sleep(_TICK_S)
        self._mourning.end()

    def _violation(self, kind: Kind, what: str, pid: int = 0) -> None:
        self.tally.violations.append(Violation(kind, what, pid=pid))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._family.end()
        self._daemon.remove()
        self._folder.cleanup()
