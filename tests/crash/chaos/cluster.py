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

from chaos.child_processes import Child, ChildProcesses
from chaos.daemons import ChaosDaemon
from chaos.engine import EngineContext
from chaos.engine_pool import SEATS, EnginePool
from chaos.heartbeat import Heartbeats
from chaos.round_counts import Tally
from chaos.scenario import Scene
from chaos.slot_reuse import SlotReuse
from oracle.checker import Kind, Violation
from pagetier.shm._core import Observer

_ATTACHED: Final = ("engine", "scheduler", "rank", "probe")
_TICK_S: Final = 0.003
_STOPPED_S: Final = 0.4
_NO_DAEMON_S: Final = 0.15
_CALM_S: Final = 20.0


class Cluster:
    """The processes of a cache under test. end() leaves no process, shared memory or folder of the daemon behind.

    Engines start after use_engines().

    Args:
        scene: The configuration of the cache.
        folder: The folder in which children write their tracebacks.
        rng: The source of chance.
        tally: The counts to which events are added.
    """

    def __init__(self, scene: Scene, folder: Path, rng: random.Random, tally: Tally) -> None:
        self.processes = ChildProcesses(folder)
        self.daemon = ChaosDaemon(scene, self.processes)
        self.heartbeats = Heartbeats(SEATS)
        self.slot_reuse = SlotReuse(scene.late)
        self.tally = tally
        self._rng = rng
        self._hangs = scene.hangs
        self._no_daemon_until = 0.0
        self._stopped: list[Child] = []
        self._worker_death_requested = False
        self._workers_killed: set[int] = set()

    def use_engines(self, context: EngineContext) -> None:
        """Sets the context of the engines; start_missing() starts engines from now on."""
        self._pool = EnginePool(self.processes, context, self._rng)

    def maintain(self, now: float) -> None:
        """Does the regular work: reaps children, resumes stopped processes and starts a daemon if there is none."""
        for child in self.processes.reap():
            self._note_end(child, now)
        for child in [child for child in self._stopped if child.stopped <= now]:
            self._resume(child)
        if self._worker_death_requested:
            self._kill_worker()
        if not self.daemon.poll():
            self.slot_reuse.no_daemon()
            if not self.daemon.children and now >= self._no_daemon_until:
                self._start_daemons()

    def start_missing(self) -> None:
        """Starts an engine for each seat that has none. An engine without progress is a violation, and is killed."""
        for child in self._pool.start_missing():
            self.tally.lives[child.role] += 1
        for child in self._pool.living:
            if not child.killed and not child.stopped and self.heartbeats.silent(child.seat) > self._hangs:
                self.violation(Kind.HANG, f"{child.role} made no progress for {self._hangs} s", child.pid)
                self._kill(child)

    def kill_engine(self) -> None:
        """Kills a random engine process."""
        living = [child for child in self._pool.living if not child.killed]
        if living:
            self._kill(self._rng.choice(living))

    def kill_daemon(self) -> None:
        """Kills the daemon that serves, and each that is starting."""
        for child in self.daemon.children:
            self._kill(child)
        self._no_daemon_until = time.monotonic() + self._rng.choice((0.0, self._rng.uniform(0, _NO_DAEMON_S)))

    def request_worker_death(self) -> None:
        """Kills the disk worker now or, if there is none, as soon as there is one."""
        self._worker_death_requested = True

    def stop_random_process(self) -> None:
        """Stops a random engine process or the daemon for a while."""
        daemons = [self.daemon.serving] if self.daemon.serving else []
        candidates = [*self._pool.living, *daemons * 3]
        able = [child for child in candidates if child.lives and not child.killed and not child.stopped]
        if able:
            child = self._rng.choice(able)
            child.stopped = time.monotonic() + self._rng.uniform(0, _STOPPED_S)
            self._stopped.append(child)
            if child is self.daemon.serving:
                self.slot_reuse.daemon_stopped(time.monotonic())
            self.processes.signal(child, signal.SIGSTOP)
            self.tally.stops[child.role] += 1

    def check_slots(self, now: float, observer: Observer) -> None:
        """Checks which dead processes still have their slots."""
        serving = self.daemon.serving
        if serving is None:
            self.slot_reuse.no_daemon()
        elif serving.stopped:
            self.slot_reuse.daemon_stopped(now)
        else:
            self.slot_reuse.observe(serving.pid, {slot.pid for slot in observer.attachments_with_pins()}, now)

    def end_engines(self, observer: Observer) -> None:
        """Kills all engines at once and waits until the daemon has released their slots.

        Raises:
            RuntimeError: That takes too long.
        """
        for child in list(self._stopped):
            self._resume(child)
        for child in self._pool.living:
            self._kill(child)
        ends = time.monotonic() + _CALM_S
        while self._pool.living or self.slot_reuse.pending:
            now = time.monotonic()
            if now > ends:
                raise RuntimeError(f"dead processes still have slots after {_CALM_S} s: {self.daemon.last_output()}")
            self.maintain(now)
            self.check_slots(now, observer)
            time.sleep(_TICK_S)
        self.slot_reuse.end()

    def violation(self, kind: Kind, what: str, pid: int = 0) -> None:
        """Records a broken promise."""
        self.tally.violations.append(Violation(kind, what, pid=pid))

    def end(self) -> None:
        """Kills all processes and removes what they left."""
        self.processes.end()
        self.daemon.remove()

    def _start_daemons(self) -> None:
        """Starts a daemon; sometimes two at once, of which one must be rejected."""
        for role in ["daemon", *(["daemon beside another"] if self._rng.random() < 0.1 else [])]:
            self.daemon.start_daemon()
            self.tally.lives[role] += 1

    def _note_end(self, child: Child, now: float) -> None:
        if child.role == "daemon":
            well = self.daemon.ended_well(child)
        else:
            if child.role in _ATTACHED:
                self.slot_reuse.died(child.pid, now)
            well = child.killed_by_test or child.code == 0
        if not well:
            why = self.processes.last_output(child)
            self.violation(Kind.CRASH, f"{child.role} ended with {child.code}: {why}", child.pid)
        elif not child.killed and child.role != "judge":
            self.tally.deaths[f"{child.role}, by itself"] += 1

    def _kill(self, child: Child) -> None:
        if child.lives and not child.killed:
            self.processes.kill(child)
            self.tally.deaths[child.role] += 1

    def _kill_worker(self) -> None:
        pid = self.daemon.worker()
        if pid and pid not in self._workers_killed:
            self._worker_death_requested = False
            self._workers_killed.add(pid)
            os.kill(pid, signal.SIGKILL)
            self.tally.deaths["disk worker"] += 1

    def _resume(self, child: Child) -> None:
        self._stopped.remove(child)
        child.stopped = 0.0
        self.processes.signal(child, signal.SIGCONT)
