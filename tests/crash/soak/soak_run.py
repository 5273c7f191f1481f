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
from chaos.cluster import Populace
from chaos.eviction_accounting import Leaving
from chaos.final_audit import Ending, await_daemon, await_disk
from chaos.random_schedule import Fates
from chaos.round_counts import Tally
from oracle.checker import Kind
from oracle.samples import Sample, taken
from soak.journal_rotation import Chapters, Verdict
from soak.latency_histogram import Times
from soak.measurements import Shelf
from soak.plan import Plan, SoakPost
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
        self._all = Populace(plan.scene, self._place, self._rng, self.tally)
        self._chapters = Chapters(self._place)
        self._times = Times(1, len(Timed))
        self.shelf = Shelf(self._place, len(Timed))
        self._peak = Sample(at=0, arena=0)
        self._next_to_judge = self._gone_at_turn = 0
        self._judge: Child | None = None
        self._turned = time.monotonic()
        self._hanging: tuple[int, float] = (0, 0.0)

    def run(self, progress: Progress) -> None:
        """Runs the soak; its results are in `tally` and `shelf`. `progress` is called often with the counts so far."""
        began = time.monotonic()
        try:
            self._live(progress)
        except RuntimeError as error:
            self._all.violation(Kind.HANG, str(error))
        self.tally.returned += self._all.mourning.returned
        self.tally.violations += self._all.mourning.violations
        self.tally.adoptions += self._all.daemon.adoptions
        self.tally.steps, self.tally.bytes_verified = self._all.seats.steps, self._all.seats.bytes
        self.tally.seconds = time.monotonic() - began

    @property
    def kept(self) -> list[Path]:
        """The folders of chapters with a broken promise, valid within the context."""
        numbers = range(self._chapters.number + 1) if self.tally.violations else ()
        return [path for path in map(self._chapters.path, numbers) if path.exists()]

    def _live(self, progress: Progress) -> None:
        """Runs all stages. Raises RuntimeError if a stage hangs, so that the cache cannot be audited."""
        self._all.daemon.light()
        await_daemon(self._all.daemon, self._all.family)
        await_disk(self._all.daemon)
        self._observer = self._all.daemon.observer()
        self._leaving = Leaving(self._observer)
        self._people()
        self._began = time.monotonic()
        fates = self._fates(self._began)
        self._warm_up(fates, progress)
        self._measure(fates, progress)
        self._all.family.kill(self._probe)
        self._wake_worker(float("inf"))
        self._all.calm(self._observer)
        self._finish()

    def _people(self) -> None:
        now = time.monotonic()
        scene, where, seats = self.plan.scene, self._all.daemon.socket, self._all.seats
        post = SoakPost(scene, where, self._place, seats, now, now, self.plan.seed, chapters=self._chapters)
        self._all.hire(post)
        chance = self._rng.getrandbits(32)
        self._probe = self._all.family.fork("probe", lambda: Probe(post, self._times, chance).run())

    def _fates(self, now: float) -> Fates:
        scene, fates = self.plan.scene, Fates(self._rng, now)
        fates.add(self._all.kill_engine, scene.engine_death)
        fates.add(self._all.stop_somebody, scene.stop)
        fates.add(self._sample, _SAMPLE_S)
        return fates

    def _warm_up(self, fates: Fates, progress: Progress) -> None:
        """Waits until the disk is full, so that nothing has a reason to grow later, or until the warm-up is over."""
        ends = time.monotonic() + self.plan.warm
        self._pass_time(fates, progress, lambda now: now >= ends or self._is_full())
        self.warm = self._is_full()

    def _is_full(self) -> bool:
        return self._observer.header()["disk_evicted"] > 0

    def _measure(self, fates: Fates, progress: Progress) -> None:
        plan, began = self.plan, time.monotonic()
        later = began - self._began
        fates.add(self._all.kill_daemon, plan.scene.daemon_death, later)
        fates.add(self._all.condemn_worker, plan.scene.worker_death, later)
        fates.add(self._hang_worker, _HANG_EVERY_S, later)
        self.shelf.begin(self._times.counts())
        due_reading, due_window = began, began + plan.window

        def measured(now: float) -> bool:
            nonlocal due_reading, due_window
            if now >= due_reading:
                due_reading += plan.sample
                self.shelf.put(self._reading(now - began))
            if now >= due_window:
                due_window += plan.window
                self.shelf.end_window(self._times.counts())
            return now >= began + plan.seconds

        self._pass_time(fates, progress, measured)

    def _pass_time(self, fates: Fates, progress: Progress, done: Callable[[float], bool]) -> None:
        while not done(now := time.monotonic()):
            self._all.tend(now)
            self._all.man()
            fates.pass_on(now)
            self._wake_worker(now)
            self._turn_pages(now)
            if not self._probe.lives:
                raise RuntimeError(f"the probe has ended: {self._all.family.last_words(self._probe)}")
            progress(self.tally)
            time.sleep(_TICK_S)

    def _sample(self) -> None:
        now = taken(self._observer, self._all.daemon.name, self._all.daemon.disk)
        most = {name: max(getattr(now, name), getattr(self._peak, name)) for name in ("arena", "shm", "disk")}
        self._peak = Sample(at=now.at, **most)
        self.tally.samples += 1
        self._leaving.look()
        self._all.mourn(time.monotonic(), self._observer)

    def _reading(self, at: float) -> Reading:
        daemon, header = self._all.daemon, self._observer.header()
        sample = taken(self._observer, daemon.name, daemon.disk)
        return Reading(
            at=at,
            daemon=vitals(daemon.serving.pid) if daemon.serving else None,
            worker=vitals(daemon.worker()) if daemon.worker() else None,
            probe=vitals(self._probe.pid),
            readers=readers(daemon.disk),
            disk=sample.disk,
            shm=sample.shm,
            used_frames=header["used_frames"],
            pages=header["pages"],
            slots=len(self._observer.slots()),
            open_entries=header["open_entries"],
        )

    def _hang_worker(self) -> None:
        """Stops the disk worker, which looks like a disk that hangs."""
        pid = self._all.daemon.worker()
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

    def _turn_pages(self, now: float) -> None:
        """Opens a new chapter now and then, and has the last one judged after its last line was written."""
        if now >= self._turned + self.plan.chapter and self._next_to_judge == self._chapters.number:
            self._chapters.turn()
            self._turned, self._gone_at_turn = now, self._leaving.pages
        self._hear_judge()
        waits = self._next_to_judge < self._chapters.number and now >= self._turned + _GRACE_S
        if waits and self._judge is None:
            number = self._next_to_judge
            self._judge = self._all.family.fork("judge", lambda: self._judge_chapter(number))

    def _judge_chapter(self, number: int) -> None:
        os.nice(_JUDGES_NICE)
        self._chapters.judge(number, self._verdict)

    @property
    def _verdict(self) -> Path:
        return self._place / "chapter-verdict"

    def _hear_judge(self) -> None:
        """Takes the verdict of a judge that has ended. Raises RuntimeError if it failed."""
        if self._judge is None or self._judge.lives:
            return
        if self._judge.code != 0:
            raise RuntimeError(f"a chapter cannot be judged: {self._all.family.last_words(self._judge)}")
        verdict = msgspec.json.decode(self._verdict.read_bytes(), type=Verdict)
        self.tally.told.update(verdict.told)
        self.tally.violations += verdict.violations
        self._judge = None
        self._next_to_judge += 1

    def _finish(self) -> None:
        """Judges the rest of the journals as those of a chaos round, with all audits."""
        self._judge_all()
        journals = self._chapters.path(self._chapters.number)
        family, daemon = self._all.family, self._all.daemon
        scene, seed, gone = self.plan.scene, self.plan.seed, self._gone_at_turn
        ending = Ending(scene, daemon, family, self._leaving, journals, seed, gone_before=gone)
        verdict = ending.judge(self.tally, [self._peak])
        self.tally.told.update(verdict.told)
        self.tally.pages["missed"] += verdict.missed
        self.tally.disk_use.append(self._peak.disk / self.plan.scene.disk)
        self.tally.violations += [*verdict.violations, *ending.stop()]

    def _judge_all(self) -> None:
        """Judges all chapters but the last, which gets the list of begun pages from the one before."""
        ends = time.monotonic() + _JUDGES_S
        while self._next_to_judge < self._chapters.number:
            if time.monotonic() > ends:
                raise RuntimeError(f"a chapter cannot be judged within {_JUDGES_S:.0f} s")
            self._all.tend(time.monotonic())
            self._turn_pages(self._turned + _GRACE_S)
            time.sleep(_TICK_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._all.end()
        self._folder.cleanup()
