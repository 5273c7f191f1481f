"""Runs a soak: a warm-up, the measurement with deaths every few seconds, and the final audit of a chaos round."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias

import msgspec

from chaos.child_processes import Child
from chaos.cleanup import prefix_of_this_process
from chaos.cluster import Cluster
from chaos.eviction_accounting import EvictionAccounting
from chaos.final_audit import FinalAudit, await_daemon, await_disk
from chaos.random_schedule import Schedule
from chaos.round_counts import Tally
from oracle.checker import Kind
from oracle.samples import Sample, taken
from soak.journal_rotation import Chapters, Verdict
from soak.latency_histogram import Times
from soak.measurements import Measurements
from soak.plan import Plan, SoakContext
from soak.probe import Probe, Timed
from soak.sampling import Reading, readers, vitals

Progress: TypeAlias = Callable[[Tally], None]

_TICK_S: Final = 0.01
_SAMPLE_S: Final = 0.1
_GRACE_S: Final = 3.0
_JUDGES_S: Final = 900.0  # judges run at the lowest priority
_JUDGES_NICE: Final = 10
_HANG_EVERY_S: Final = 20.0
_HANG_S: Final = 1.0


class Soak:
    """A soak. As a context manager it leaves no process and no shared memory behind.

    `warm` tells whether the disk was full when the measurement began.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tally = Tally(rounds=1)
        self.warm = False
        self._folder = tempfile.TemporaryDirectory(prefix=prefix_of_this_process(), ignore_cleanup_errors=True)
        self._place = Path(self._folder.name)
        self._rng = random.Random(plan.seed)
        self._cluster = Cluster(plan.scene, self._place, self._rng, self.tally)
        self._chapters = Chapters(self._place)
        self._times = Times(1, len(Timed))
        self.measurements = Measurements(self._place, len(Timed))
        self._peak = Sample(at=0, arena=0)
        self._next_to_judge = self._gone_at_turn = 0
        self._judge: Child | None = None
        self._turned = time.monotonic()
        self._hanging: tuple[int, float] = (0, 0.0)

    def run(self, progress: Progress) -> None:
        """Runs the soak; its results are in `tally` and `measurements`. `progress` gets the counts so far."""
        began = time.monotonic()
        try:
            self._live(progress)
        except RuntimeError as error:
            self._cluster.violation(Kind.HANG, str(error))
        self.tally.returned += self._cluster.slot_reuse.returned
        self.tally.violations += self._cluster.slot_reuse.violations
        self.tally.adoptions += self._cluster.daemon.adoptions
        self.tally.steps, self.tally.bytes_verified = self._cluster.heartbeats.steps, self._cluster.heartbeats.bytes
        self.tally.seconds = time.monotonic() - began

    @property
    def kept(self) -> list[Path]:
        """The folders of chapters with a broken promise, valid within the context."""
        numbers = range(self._chapters.number + 1) if self.tally.violations else ()
        return [path for path in map(self._chapters.path, numbers) if path.exists()]

    def _live(self, progress: Progress) -> None:
        """Runs all stages. Raises RuntimeError if a stage hangs, so that the cache cannot be audited."""
        self._cluster.daemon.start_daemon()
        await_daemon(self._cluster.daemon, self._cluster.processes)
        await_disk(self._cluster.daemon)
        self._observer = self._cluster.daemon.observer()
        self._evictions = EvictionAccounting(self._observer)
        self._start_engines()
        self._began = time.monotonic()
        schedule = self._schedule(self._began)
        self._warm_up(schedule, progress)
        self._measure(schedule, progress)
        self._cluster.processes.kill(self._probe)
        self._wake_worker(float("inf"))
        self._cluster.end_engines(self._observer)
        self._finish()

    def _start_engines(self) -> None:
        now = time.monotonic()
        scene, where, seats = self.plan.scene, self._cluster.daemon.socket, self._cluster.heartbeats
        context = SoakContext(scene, where, self._place, seats, now, now, self.plan.seed, chapters=self._chapters)
        self._cluster.use_engines(context)
        chance = self._rng.getrandbits(32)
        self._probe = self._cluster.processes.fork("probe", lambda: Probe(context, self._times, chance).run())

    def _schedule(self, now: float) -> Schedule:
        scene, schedule = self.plan.scene, Schedule(self._rng, now)
        schedule.add(self._cluster.kill_engine, scene.engine_death)
        schedule.add(self._cluster.stop_random_process, scene.stop)
        schedule.add(self._sample, _SAMPLE_S)
        return schedule

    def _warm_up(self, schedule: Schedule, progress: Progress) -> None:
        """Waits until the disk is full, so that nothing has a reason to grow later, or until the warm-up is over."""
        ends = time.monotonic() + self.plan.warm
        self._pass_time(schedule, progress, lambda now: now >= ends or self._is_full())
        self.warm = self._is_full()

    def _is_full(self) -> bool:
        return self._observer.header().disk_evicted > 0

    def _measure(self, schedule: Schedule, progress: Progress) -> None:
        plan, began = self.plan, time.monotonic()
        later = began - self._began
        schedule.add(self._cluster.kill_daemon, plan.scene.daemon_death, later)
        schedule.add(self._cluster.request_worker_death, plan.scene.worker_death, later)
        schedule.add(self._hang_worker, _HANG_EVERY_S, later)
        self.measurements.begin(self._times.counts())
        due_reading, due_window = began, began + plan.window

        def measured(now: float) -> bool:
            nonlocal due_reading, due_window
            if now >= due_reading:
                due_reading += plan.sample
                self.measurements.put(self._reading(now - began))
            if now >= due_window:
                due_window += plan.window
                self.measurements.end_window(self._times.counts())
            return now >= began + plan.seconds

        self._pass_time(schedule, progress, measured)

    def _pass_time(self, schedule: Schedule, progress: Progress, done: Callable[[float], bool]) -> None:
        while not done(now := time.monotonic()):
            self._cluster.maintain(now)
            self._cluster.start_missing()
            schedule.run_due(now)
            self._wake_worker(now)
            self._turn_chapter(now)
            if not self._probe.lives:
                raise RuntimeError(f"the probe has ended: {self._cluster.processes.last_output(self._probe)}")
            progress(self.tally)
            time.sleep(_TICK_S)

    def _sample(self) -> None:
        now = taken(self._observer, self._cluster.daemon.name, self._cluster.daemon.disk)
        most = {name: max(getattr(now, name), getattr(self._peak, name)) for name in ("arena", "shm", "disk")}
        self._peak = Sample(at=now.at, **most)
        self.tally.samples += 1
        self._evictions.sample()
        self._cluster.check_slots(time.monotonic(), self._observer)

    def _reading(self, at: float) -> Reading:
        daemon, header = self._cluster.daemon, self._observer.header()
        sample = taken(self._observer, daemon.name, daemon.disk)
        return Reading(
            at=at,
            daemon=vitals(daemon.serving.pid) if daemon.serving else None,
            worker=vitals(daemon.worker()) if daemon.worker() else None,
            probe=vitals(self._probe.pid),
            readers=readers(daemon.disk),
            disk=sample.disk,
            shm=sample.shm,
            used_frames=header.used_frames,
            pages=header.pages,
            slots=len(self._observer.attachments_with_pins()),
            open_entries=header.open_entries,
        )

    def _hang_worker(self) -> None:
        """Stops the disk worker, which looks like a disk that hangs."""
        pid = self._cluster.daemon.worker()
        if pid and not self._hanging[0]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self._hanging = (pid, time.monotonic() + self._rng.uniform(0, _HANG_S))
                self.tally.stops["disk worker"] += 1

    def _wake_worker(self, now: float) -> None:
        pid, until = self._hanging
        if pid and now >= until:
            self._hanging = (0, 0.0)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _turn_chapter(self, now: float) -> None:
        """Opens a new chapter now and then, and has the last one judged after its last line was written."""
        if now >= self._turned + self.plan.chapter and self._next_to_judge == self._chapters.number:
            self._chapters.turn()
            self._turned, self._gone_at_turn = now, self._evictions.pages
        self._take_verdict()
        waits = self._next_to_judge < self._chapters.number and now >= self._turned + _GRACE_S
        if waits and self._judge is None:
            number = self._next_to_judge
            self._judge = self._cluster.processes.fork("judge", lambda: self._judge_chapter(number))

    def _judge_chapter(self, number: int) -> None:
        os.nice(_JUDGES_NICE)
        self._chapters.judge(number, self._verdict)

    @property
    def _verdict(self) -> Path:
        return self._place / "chapter-verdict"

    def _take_verdict(self) -> None:
        """Takes the verdict of a judge that has ended. Raises RuntimeError if it failed."""
        if self._judge is None or self._judge.lives:
            return
        if self._judge.code != 0:
            raise RuntimeError(f"a chapter cannot be judged: {self._cluster.processes.last_output(self._judge)}")
        verdict = msgspec.json.decode(self._verdict.read_bytes(), type=Verdict)
        self.tally.responses.update(verdict.responses)
        self.tally.violations += verdict.violations
        self._judge = None
        self._next_to_judge += 1

    def _finish(self) -> None:
        """Judges the rest of the journals as those of a chaos round, with all audits."""
        self._judge_all()
        journals = self._chapters.path(self._chapters.number)
        processes, daemon = self._cluster.processes, self._cluster.daemon
        scene, seed, gone = self.plan.scene, self.plan.seed, self._gone_at_turn
        final_audit = FinalAudit(scene, daemon, processes, self._evictions, journals, seed, gone_before=gone)
        verdict = final_audit.judge(self.tally, [self._peak])
        self.tally.responses.update(verdict.responses)
        self.tally.pages["missed"] += verdict.missed
        self.tally.disk_use.append(self._peak.disk / self.plan.scene.disk)
        self.tally.violations += [*verdict.violations, *final_audit.stop()]

    def _judge_all(self) -> None:
        """Judges all chapters but the last, which gets the list of begun pages from the one before."""
        ends = time.monotonic() + _JUDGES_S
        while self._next_to_judge < self._chapters.number:
            if time.monotonic() > ends:
                raise RuntimeError(f"a chapter cannot be judged within {_JUDGES_S:.0f} s")
            self._cluster.maintain(time.monotonic())
            self._turn_chapter(self._turned + _GRACE_S)
            time.sleep(_TICK_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.end()
        self._folder.cleanup()
