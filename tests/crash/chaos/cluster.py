"""Runs the processes of a cache under test: engines, a daemon and its disk worker, and kills, stops and replaces them.

A round of a chaos run has one cluster, and so has a soak test.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Final

from chaos.child_processes import Child, Family
from chaos.daemons import StormDaemon
from chaos.engine import Post
from chaos.engine_pool import SEATS, Crew
from chaos.heartbeat import Seats
from chaos.round_counts import Tally
from chaos.scenario import Scene
from chaos.slot_reuse import Mourning
from oracle.checker import Kind, Violation
from pagetier.shm._core import Observer

_ATTACHED: Final = ("engine", "scheduler", "rank", "probe")
_TICK_S: Final = 0.003
_STOPPED_S: Final = 0.4
_DARK_S: Final = 0.15
_CALM_S: Final = 20.0


class Populace:
    """The processes of a cache under test. end() leaves no process, shared memory or folder of the daemon behind.

    Engines start after hire().

    Args:
        scene: The configuration of the cache.
        folder: The folder in which children write their tracebacks.
        rng: The source of chance.
        tally: The counts to which events are added.
    """

    def __init__(self, scene: Scene, folder: Path, rng: random.Random, tally: Tally) -> None:
        self.family = Family(folder)
        self.daemon = StormDaemon(scene, self.family)
        self.seats = Seats(SEATS)
        self.mourning = Mourning(scene.late)
        self.tally = tally
        self._rng = rng
        self._hangs = scene.hangs
        self._dark_until = 0.0
        self._stopped: list[Child] = []
        self._condemned = False
        self._workers_killed: set[int] = set()

    def hire(self, post: Post) -> None:
        """Sets the context of the engines; man() starts engines from now on."""
        self._crew = Crew(self.family, post, self._rng)

    def tend(self, now: float) -> None:
        """Does the regular work: reaps children, resumes stopped processes and starts a daemon if there is none."""
        for child in self.family.reap():
            self._note_end(child, now)
        for child in [child for child in self._stopped if child.stopped <= now]:
            self._go_on(child)
        if self._condemned:
            self._kill_worker()
        if not self.daemon.look():
            self.mourning.no_daemon()
            if not self.daemon.children and now >= self._dark_until:
                self._light()

    def man(self) -> None:
        """Starts an engine for each seat that has none. An engine without progress is a violation, and is killed."""
        for child in self._crew.man():
            self.tally.lives[child.role] += 1
        for child in self._crew.living:
            if not child.killed and not child.stopped and self.seats.silent(child.seat) > self._hangs:
                self.violation(Kind.HANG, f"{child.role} made no progress for {self._hangs} s", child.pid)
                self._kill(child)

    def kill_engine(self) -> None:
        """Kills a random engine process."""
        living = [child for child in self._crew.living if not child.killed]
        if living:
            self._kill(self._rng.choice(living))

    def kill_daemon(self) -> None:
        """Kills the daemon that serves, and each that is starting."""
        for child in self.daemon.children:
            self._kill(child)
        self._dark_until = time.monotonic() + self._rng.choice((0.0, self._rng.uniform(0, _DARK_S)))

    def condemn_worker(self) -> None:
        """Kills the disk worker now or, if there is none, as soon as there is one."""
        self._condemned = True

    def stop_somebody(self) -> None:
        """Stops a random engine process or the daemon for a while."""
        daemons = [self.daemon.serving] if self.daemon.serving else []
        candidates = [*self._crew.living, *daemons * 3]
        able = [child for child in candidates if child.lives and not child.killed and not child.stopped]
        if able:
            child = self._rng.choice(able)
            child.stopped = time.monotonic() + self._rng.uniform(0, _STOPPED_S)
            self._stopped.append(child)
            if child is self.daemon.serving:
                self.mourning.stands(time.monotonic())
            self.family.signal(child, signal.SIGSTOP)
            self.tally.stops[child.role] += 1

    def mourn(self, now: float, observer: Observer) -> None:
        """Checks which dead processes still have their slots."""
        serving = self.daemon.serving
        if serving is None:
            self.mourning.no_daemon()
        elif serving.stopped:
            self.mourning.stands(now)
        else:
            self.mourning.look(serving.pid, {slot["pid"] for slot in observer.slots()}, now)

    def calm(self, observer: Observer) -> None:
        """Kills all engines at once and waits until the daemon has released their slots.

        Raises RuntimeError if that takes too long.
        """
        for child in list(self._stopped):
            self._go_on(child)
        for child in self._crew.living:
            self._kill(child)
        ends = time.monotonic() + _CALM_S
        while self._crew.living or self.mourning.waits:
            now = time.monotonic()
            if now > ends:
                raise RuntimeError(f"dead processes still have slots after {_CALM_S} s: {self.daemon.last_words()}")
            self.tend(now)
            self.mourn(now, observer)
            time.sleep(_TICK_S)
        self.mourning.end()

    def violation(self, kind: Kind, what: str, pid: int = 0) -> None:
        """Records a broken promise."""
        self.tally.violations.append(Violation(kind, what, pid=pid))

    def end(self) -> None:
        """Kills all processes and removes what they left."""
        self.family.end()
        self.daemon.remove()

    def _light(self) -> None:
        """Starts a daemon; sometimes two at once, of which one must be rejected."""
        for role in ["daemon", *(["daemon beside another"] if self._rng.random() < 0.1 else [])]:
            self.daemon.light()
            self.tally.lives[role] += 1

    def _note_end(self, child: Child, now: float) -> None:
        if child.role == "daemon":
            well = self.daemon.ended_well(child)
        else:
            if child.role in _ATTACHED:
                self.mourning.died(child.pid, now)
            well = child.hit or child.code == 0
        if not well:
            why = self.family.last_words(child)
            self.violation(Kind.CRASH, f"{child.role} ended with {child.code}: {why}", child.pid)
        elif not child.killed and child.role != "judge":
            self.tally.deaths[f"{child.role}, by itself"] += 1

    def _kill(self, child: Child) -> None:
        if child.lives and not child.killed:
            self.family.kill(child)
            self.tally.deaths[child.role] += 1

    def _kill_worker(self) -> None:
        pid = self.daemon.worker()
        if pid and pid not in self._workers_killed:
            self._condemned = False
            self._workers_killed.add(pid)
            os.kill(pid, signal.SIGKILL)
            self.tally.deaths["disk worker"] += 1

    def _go_on(self, child: Child) -> None:
        self._stopped.remove(child)
        child.stopped = 0.0
        self.family.signal(child, signal.SIGCONT)
