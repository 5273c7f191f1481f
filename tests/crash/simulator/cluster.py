"""Runs, kills, stops and replaces the processes of a cache under test: engines, a daemon and its disk worker."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from eventually import eventually
from oracle.checker import Kind, Violation
from simulator.chapters import Chapters
from simulator.children import Child, ChildProcesses
from simulator.daemons import CacheDaemons
from simulator.engine import EngineContext
from simulator.engine_pool import EnginePool, seats_of
from simulator.eviction_accounting import EvictionAccounting
from simulator.heartbeats import Heartbeats
from simulator.scenes import SimulatedScene
from simulator.slot_reuse import SlotReuse
from simulator.tally import Tally

_DETACHED: Final = ("daemon", "judge")
_STOPPED_S: Final = 0.4
_HANG_S: Final = 1.0
_NO_DAEMON_S: Final = 0.15
_CALM_S: Final = 20.0


class Cluster:
    """The processes of a cache under test. end() leaves no process, shared memory or folder of the daemon behind.

    Args:
        scene: The configuration of the cache.
        folder: The folder in which children write their tracebacks and the durations of calls.
        chapters: The journals.
        seed: The seed of all that is random.
        tally: The counts to which events are added.
    """

    def __init__(self, scene: SimulatedScene, folder: Path, chapters: Chapters, seed: int, tally: Tally) -> None:
        self.processes = ChildProcesses(folder)
        self.daemon = CacheDaemons(scene, self.processes)
        self.heartbeats = Heartbeats(seats_of(scene) + 1)
        self.slot_reuse = SlotReuse(scene.late)
        self.tally = tally
        self.rng = random.Random(seed)
        self.context = EngineContext(scene, self.daemon.socket, folder, chapters, self.heartbeats, seed)
        self._pool = EnginePool(self.processes, self.context, self.rng)
        self._no_daemon_until = 0.0
        self._stopped: list[Child] = []
        self._worker_death_requested = False
        self._workers_killed: set[int] = set()
        self._hanging_worker = (0, 0.0)

    def start(self) -> None:
        """Starts a daemon and waits until it serves, with its disk tier. Raises RuntimeError if it does not."""
        self.daemon.start_daemon()
        self.daemon.await_serving()
        if self.context.scene.disk:
            self.daemon.await_disk(self.context.scene.devices - 1)
        if self.context.scene.fleet:
            self.daemon.await_fleet()
        self.observer = self.daemon.observer()
        self.evictions = EvictionAccounting(self.observer)

    def maintain(self, now: float) -> None:
        """Does the regular work: reaps children, resumes stopped processes and starts a daemon if there is none."""
        for child in self.processes.reap():
            self._note_end(child, now)
        for child in [child for child in self._stopped if child.stopped <= now]:
            self._resume(child)
        if self._hanging_worker[1] <= now:
            self._resume_worker()
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
            hangs = self.context.scene.hangs
            if not child.killed and not child.stopped and self.heartbeats.silent(child.seat) > hangs:
                self.violation(Kind.HANG, f"{child.role} made no progress for {hangs} s", child.pid)
                self._kill(child)

    @property
    def engines(self) -> list[Child]:
        """The running processes of all engines."""
        return self._pool.living

    def kill_engine(self) -> None:
        """Kills a random engine process."""
        living = [child for child in self._pool.living if not child.killed]
        if living:
            self._kill(self.rng.choice(living))

    def kill_daemon(self) -> None:
        """Kills the daemon that serves, and each that is starting."""
        for child in self.daemon.children:
            self._kill(child)
        self._no_daemon_until = time.monotonic() + self.rng.choice((0.0, self.rng.uniform(0, _NO_DAEMON_S)))

    def request_worker_death(self) -> None:
        """Kills a disk worker now or, if there is none, as soon as there is one."""
        self._worker_death_requested = True

    def hang_worker(self) -> None:
        """Stops a disk worker for a while, which looks like a disk that hangs."""
        pid = self.daemon.worker(self.rng)
        if pid and not self._hanging_worker[0]:
            self._hanging_worker = (pid, time.monotonic() + self.rng.uniform(0, _HANG_S))
            self.tally.stops[self._worker_role] += 1
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def stop_random_process(self) -> None:
        """Stops a random engine process or the daemon for a while."""
        daemons = [self.daemon.serving] if self.daemon.serving else []
        candidates = [*self._pool.living, *daemons * 3]
        able = [child for child in candidates if child.lives and not child.killed and not child.stopped]
        if able:
            child = self.rng.choice(able)
            child.stopped = time.monotonic() + self.rng.uniform(0, _STOPPED_S)
            self._stopped.append(child)
            if child is self.daemon.serving:
                self.slot_reuse.daemon_stopped(time.monotonic())
            self.processes.signal(child, signal.SIGSTOP)
            self.tally.stops[child.role] += 1

    def check_slots(self, now: float) -> None:
        """Checks which dead processes still have their slots."""
        serving = self.daemon.serving
        if serving is None:
            self.slot_reuse.no_daemon()
        elif serving.stopped:
            self.slot_reuse.daemon_stopped(now)
        else:
            self.slot_reuse.observe(serving.pid, {slot.pid for slot in self.observer.attachments_with_pins()}, now)

    def end_engines(self) -> None:
        """Kills all engines at once and waits until the daemon has released their slots.

        Raises:
            RuntimeError: That takes too long.
        """
        for child in list(self._stopped):
            self._resume(child)
        self._resume_worker()
        for child in self._pool.living:
            self._kill(child)

        def is_calm() -> bool:
            if not self._pool.living and not self.slot_reuse.pending:
                return True
            self.maintain(now := time.monotonic())
            self.check_slots(now)
            return False

        if not eventually(is_calm, _CALM_S):
            raise RuntimeError(f"dead processes still have slots after {_CALM_S} s: {self.daemon.last_output()}")
        self.slot_reuse.end()

    def violation(self, kind: Kind, what: str, pid: int = 0) -> None:
        """Records a broken promise."""
        self.tally.violations.append(Violation(kind, what, pid=pid))

    @property
    def _worker_role(self) -> str:
        return "fleet worker" if self.context.scene.fleet else "disk worker"

    def end(self) -> None:
        """Kills all processes and removes what they left."""
        self.processes.end()
        self.daemon.remove()

    def _start_daemons(self) -> None:
        """Starts a daemon; sometimes two at once, of which one must be rejected."""
        for role in ["daemon", *(["daemon beside another"] if self.rng.random() < 0.1 else [])]:
            self.daemon.start_daemon()
            self.tally.lives[role] += 1

    def _note_end(self, child: Child, now: float) -> None:
        if child.role == "daemon":
            well = self.daemon.ended_well(child)
        else:
            if child.role not in _DETACHED:
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
        pid = self.daemon.worker(self.rng)
        if pid and pid not in self._workers_killed:
            self._worker_death_requested = False
            self._workers_killed.add(pid)
            os.kill(pid, signal.SIGKILL)
            self.tally.deaths[self._worker_role] += 1

    def _resume(self, child: Child) -> None:
        self._stopped.remove(child)
        child.stopped = 0.0
        self.processes.signal(child, signal.SIGCONT)

    def _resume_worker(self) -> None:
        pid, self._hanging_worker = self._hanging_worker[0], (0, 0.0)
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
