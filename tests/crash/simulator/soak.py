"""A long run: a warm-up, a measurement with deaths every few seconds, and the audit of a round of random deaths."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from eventually import eventually
from simulator.call_times import Call, latencies, read_times
from simulator.chapters import Verdict
from simulator.children import Child
from simulator.engine_pool import seats_of
from simulator.probe import CONTROLS, probe
from simulator.report import Results
from simulator.sampling import Reading, reading_of
from simulator.scenes import MIB, SimulatedScene, soak_scene
from simulator.simulation import Simulation
from simulator.tally import Tally
from simulator.trends import SHARES, Drift, Growth, Point, drift, growth, thinned

WINDOWS: Final = 12
"""The number of windows in the first and the last part, whose medians are compared."""

_GRACE_S: Final = 3.0
_JUDGES_S: Final = 900.0  # judges run at the lowest priority
_JUDGES_NICE: Final = 10
_HANG_EVERY_S: Final = 20.0
_CHURN_S: Final = 0.3
_LONG_S: Final = 600.0
_PROMPTS_A_SECOND: Final = 3.0
_DESCRIPTORS: Final = 3
_ALL_LIVES: Final = 0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a soak; in a short one everything happens sooner.

    Attributes:
        seconds: The duration of the measurement, after the warm-up.
        scene: The configuration of the cache and its events.
        part: The seconds at the beginning and at the end that are compared.
        warm: The longest duration of the warm-up, in seconds.
        is_long: Whether the run is long enough for values that vary, as the number of slots and of pages being written.
        chapter: The interval between chapters of journals, in seconds.
        sample: The interval between readings.
        memory: The MiB of private memory that a process may gain in its life.
    """

    seconds: float
    scene: SimulatedScene
    part: float
    warm: float
    is_long: bool
    chapter: float
    sample: float
    memory: float

    @classmethod
    def of(cls, seconds: float) -> Plan:
        """Returns the plan of a soak of that length."""
        is_long = seconds >= _LONG_S
        return cls(
            seconds=seconds,
            scene=soak_scene(seconds),
            part=min(600.0, seconds / 9),
            warm=max(8.0, min(600.0, seconds / 4)),
            is_long=is_long,
            chapter=60.0 if is_long else 6.0,
            sample=1.0 if is_long else 0.25,
            memory=2.0 if is_long else 8.0,
        )

    def churning(self) -> Plan:
        """Returns the plan with one daemon and one disk worker only, and clients that attach and detach often."""
        scene = msgspec.structs.replace(self.scene, daemon_death=0.0, worker_death=0.0, engine_death=_CHURN_S)
        return msgspec.structs.replace(self, scene=scene)


class Measured(msgspec.Struct, frozen=True):
    """The measurements of a run.

    Attributes:
        plan: The plan of the run.
        readings: The readings, in order.
        times: The durations of calls from read_times(), with `at` in seconds since the measurement began.
        warm: Whether the disk was full at the begin.
    """

    plan: Plan
    readings: Sequence[Reading]
    times: np.ndarray
    warm: bool

    def growths(self) -> list[Growth]:
        """Returns the growth of each value that must stay constant; of varying values only in a long run."""
        plan = self.plan
        found: list[Growth] = []
        for role in ("daemon", "probe", *(["worker"] if plan.is_long else [])):
            its = [(reading.at, reading.processes[role]) for reading in self.readings if role in reading.processes]
            memory = [Point(at, vitals.pid, vitals.rss / MIB) for at, vitals in its]
            one_life = [point._replace(life=_ALL_LIVES) for point in memory]
            descriptors = [Point(at, vitals.pid, vitals.descriptors) for at, vitals in its]
            found.append(self._growth(f"RssAnon, {role}", "MiB", memory, plan.memory))
            found.append(self._growth(f"RssAnon, all lives of the {role}", "MiB", one_life, plan.memory))
            found.append(self._growth(f"descriptors, {role}", "", descriptors, _DESCRIPTORS))
        for name, limit in self._limits().items():
            points = [Point(reading.at, _ALL_LIVES, reading.numbers[name]) for reading in self.readings]
            found.append(self._growth(name, "MiB" if name in ("disk", "/dev/shm") else "", points, limit))
        return found

    def drifts(self, seed: int) -> list[Drift]:
        """Returns the drift of each quantile of each kind of call; none if there are windows without calls."""
        begins, edges = (0.0, self.plan.seconds - self.plan.part), np.linspace(0, self.plan.part, WINDOWS + 1)
        found = []
        for call, control in CONTROLS.items():
            parts = [self.windows(kind, begin + edges) for kind in (call, control) for begin in begins]
            if all(len(took) for part in parts for took in part):
                found += [drift(call.name.lower(), share, parts, seed) for share in SHARES]
        return found

    def results(self, seed: int) -> Results:
        """Returns what the report shows."""
        note = "" if self.warm else "The disk was not full when measuring began: its growth is not judged.\n"
        return Results(
            notes=[note],
            latencies=latencies(self.times),
            growths=self.growths(),
            drifts=self.drifts(seed),
            timeline=self.timeline(),
        )

    def windows(self, call: Call, edges: np.ndarray) -> list[np.ndarray]:
        """Returns the durations of a kind of call between two edges of windows each, in seconds."""
        its = self.times[self.times["call"] == call]
        return np.split(its["took"].astype(float), np.searchsorted(its["at"], edges))[1:-1]

    def timeline(self) -> dict[str, list[float | None]]:
        """Returns the median of each measured value, and quantiles of calls in µs, in each twelfth of the run."""
        edges = np.linspace(0, self.plan.seconds, WINDOWS + 1)
        values: dict[str, list[tuple[float, float]]] = {}
        for reading in self.readings:
            for name, value in _values(reading):
                values.setdefault(name, []).append((reading.at, value))
        found = {}
        for name, its in values.items():
            at, series = np.array(its).T
            found[name] = [_quantile(window, 0.5) for window in np.split(series, np.searchsorted(at, edges))[1:-1]]
        for call in (*CONTROLS, *CONTROLS.values()):
            for share in SHARES:
                windows = self.windows(call, edges)
                name = f"{call.name.lower()} p{100 * share:g}, µs"
                found[name] = [_quantile(1e6 * window, share) for window in windows]
        return found

    def _limits(self) -> dict[str, float]:
        """Returns the growth of numbers of a Reading that is no leak."""
        arena, disk = self.plan.scene.arena / MIB, self.plan.scene.disk / MIB
        limits = {"LMDB readers": 2.0, "/dev/shm": arena / 50, "slots": 3.0, "pages being written": 10.0}
        if self.warm:
            limits["disk"] = disk / 20
        return limits if self.plan.is_long else {"LMDB readers": 2.0}

    def _growth(self, name: str, unit: str, points: Sequence[Point], limit: float) -> Growth:
        every = max(0.5, min(60.0, self.plan.seconds / 90))
        return growth(name, unit, thinned(points, every, skip=min(300.0, self.plan.seconds / 12)), limit)


class Soak(Simulation):
    """A soak; its results are in `tally` and measured()."""

    def __init__(self, plan: Plan, seed: int, show: Callable[[Tally], None]) -> None:
        super().__init__(plan.scene, plan.seconds, seed, show)
        self.plan = plan
        self._file = self.folder / "readings"
        self._readings = self._next_to_judge = 0
        self._judge: Child | None = None
        self._started = self._turned = time.monotonic()
        self._began = self._ends = float("inf")
        self._warm = False

    def measured(self) -> Measured:
        """Returns the measurements; they are in files, because the memory of a process that forks must not grow."""
        lines = self._file.read_bytes().splitlines() if self._file.exists() else []
        times = read_times(self.folder)
        times["at"] -= self._began
        readings = [msgspec.json.decode(line, type=Reading) for line in lines]
        return Measured(self.plan, readings, times[times["at"] >= 0], self._warm)

    def _live(self) -> None:
        cluster, schedule, scene = self.cluster, self._schedule, self.scene
        context = msgspec.structs.replace(cluster.context, seat=seats_of(scene))
        chance = cluster.rng.getrandbits(32)
        self._probe = cluster.processes.fork("probe", lambda: probe(context, chance), context.seat)
        self._started = time.monotonic()
        schedule.add(cluster.kill_engine, scene.engine_death, self._clock.now)
        schedule.add(cluster.stop_random_process, scene.stop, self._clock.now)
        self._pass_time(lambda: self._is_full() or time.monotonic() >= self._started + self.plan.warm)
        self._warm = self._is_full()
        self._began, self._ends = time.monotonic(), time.monotonic() + self.seconds
        schedule.add(cluster.kill_daemon, scene.daemon_death, self._clock.now)
        schedule.add(cluster.request_worker_death, scene.worker_death, self._clock.now)
        schedule.add(cluster.hang_worker, _HANG_EVERY_S, self._clock.now)
        self._pass_time(lambda: time.monotonic() >= self._ends)
        cluster.processes.kill(self._probe)

    def _is_full(self) -> bool:
        """Returns whether the disk is full, so that nothing has a reason to grow later."""
        return self.cluster.observer.header().disk_evicted > 0

    def _tick(self, now: float) -> None:
        # Engines choose from the same mixture of prompts at any time.
        newest = self.scene.prompts // 2 + int((now - self._started) * _PROMPTS_A_SECOND)
        self.cluster.heartbeats.newest = newest
        if now >= self._turned + self.plan.chapter and self._next_to_judge == self.chapters.number:
            self.chapters.turn()
            self._turned, self._gone_before = now, self.cluster.evictions.pages
        self._judge_chapters(now)
        if now - self._began >= self._readings * self.plan.sample:
            self._readings += 1
            with self._file.open("ab") as file:
                file.write(msgspec.json.encode(reading_of(self.cluster, self._probe.pid, now - self._began)) + b"\n")
        if not self._probe.lives:
            raise RuntimeError(f"the probe has ended: {self.cluster.processes.last_output(self._probe)}")

    def _judge_chapters(self, now: float) -> None:
        """Has a chapter judged after its last line was written. Raises RuntimeError if the last judge failed."""
        processes, number = self.cluster.processes, self._next_to_judge
        if self._judge is None and number < self.chapters.number and now >= self._turned + _GRACE_S:
            self._judge = processes.compute("judge", lambda: self._judged(number))
        elif self._judge is not None and not self._judge.lives:
            verdict = msgspec.json.decode(processes.computed(self._judge), type=Verdict)
            self.tally.responses.update(verdict.responses)
            self.tally.violations += verdict.violations
            self._judge = None
            self._next_to_judge += 1

    def _judged(self, number: int) -> Verdict:
        os.nice(_JUDGES_NICE)
        return self.chapters.judge(number)

    def audit(self) -> None:
        """Judges all chapters but the last, which gets the list of begun pages from the one before; then audits."""

        def are_judged() -> bool:
            if self._next_to_judge < self.chapters.number:
                self.cluster.maintain(now := time.monotonic())
                self._judge_chapters(now)
            return self._next_to_judge == self.chapters.number

        if not eventually(are_judged, _JUDGES_S):
            raise RuntimeError(f"a chapter cannot be judged within {_JUDGES_S:.0f} s")
        super().audit()


def _values(reading: Reading) -> Iterator[tuple[str, float]]:
    for role, vitals in reading.processes.items():
        yield f"RssAnon, {role}, MiB", vitals.rss / MIB
        yield f"descriptors, {role}", vitals.descriptors
    yield from reading.numbers.items()


def _quantile(values: np.ndarray, share: float) -> float | None:
    return round(float(np.quantile(values, share)), 3) if len(values) else None
