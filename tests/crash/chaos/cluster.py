"""Who lives in a cache under test: engines, a daemon, its disk worker; how they die and stand still, and who goes on.

A round of a storm has one, and a soak.
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
    """Engines come with hire(); end() leaves no process, no shared memory and no folder of the daemon's behind.

    folder: where children that raise write down why. tally: what happens is counted in it.
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
        """From now on man() starts engines."""
        self._crew = Crew(self.family, post, self._rng)

    def tend(self, now: float) -> None:
        """What is to be done all the time: ends are noted, who stood still goes on, there is a daemon."""
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
        """An engine for each seat that has none; who does not get on is a violation, and is replaced."""
        for child in self._crew.man():
            self.tally.lives[child.role] += 1
        for child in self._crew.living:
            if not child.killed and not child.stopped and self.seats.silent(child.seat) > self._hangs:
                self.violation(Kind.HANG, f"{child.role} did nothing for {self._hangs} s", child.pid)
                self._kill(child)

    def kill_engine(self) -> None:
        """One of the processes of engines, whichever."""
        living = [child for child in self._crew.living if not child.killed]
        if living:
            self._kill(self._rng.choice(living))

    def kill_daemon(self) -> None:
        """Whoever serves, or is on the way to it."""
        for child in self.daemon.children:
            self._kill(child)
        self._dark_until = time.monotonic() + self._rng.choice((0.0, self._rng.uniform(0, _DARK_S)))

    def condemn_worker(self) -> None:
        """The disk worker dies now or, where there is none, as soon as there is one."""
        self._condemned = True

    def stop_somebody(self) -> None:
        """An engine's process or the daemon stands still for a while."""
        daemons = [self.daemon.serving] if self.daemon.serving else []
        everybody = [*self._crew.living, *daemons * 3]
        able = [child for child in everybody if child.lives and not child.killed and not child.stopped]
        if able:
            child = self._rng.choice(able)
            child.stopped = time.monotonic() + self._rng.uniform(0, _STOPPED_S)
            self._stopped.append(child)
            if child is self.daemon.serving:
                self.mourning.stands(time.monotonic())
            self.family.signal(child, signal.SIGSTOP)
            self.tally.stops[child.role] += 1

    def mourn(self, now: float, observer: Observer) -> None:
        """Whether the dead have their slots still."""
        serving = self.daemon.serving
        if serving is None:
            self.mourning.no_daemon()
        elif serving.stopped:
            self.mourning.stands(now)
        else:
            self.mourning.look(serving.pid, {slot["pid"] for slot in observer.slots()}, now)

    def calm(self, observer: Observer) -> None:
        """All engines die at once; a daemon lives, and takes back what they held.

        Raises RuntimeError if that takes for ever.
        """
        for child in list(self._stopped):
            self._go_on(child)
        for child in self._crew.living:
            self._kill(child)
        ends = time.monotonic() + _CALM_S
        while self._crew.living or self.mourning.waits:
            now = time.monotonic()
            if now > ends:
                raise RuntimeError(f"the dead still have slots after {_CALM_S} s: {self.daemon.last_words()}")
            self.tend(now)
            self.mourn(now, observer)
            time.sleep(_TICK_S)
        self.mourning.end()

    def violation(self, kind: Kind, what: str, pid: int = 0) -> None:
        """A promise was broken."""
        self.tally.violations.append(Violation(kind, what, pid=pid))

    def end(self) -> None:
        """Kills all that lives."""
        self.family.end()
        self.daemon.remove()

    def _light(self) -> None:
        """A new daemon; now and then two at once, of which one must be refused."""
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
