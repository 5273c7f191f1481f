"""A round of random deaths on two hosts that share a store, which dies and whose objects are damaged.

Everything dies on the first host. On the second one the daemon and the worker live, so that their growth can be judged.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import msgspec

from eventually import Stopwatch, eventually, pace
from oracle.checker import Kind
from oracle.journal import read_journals
from pagetier.daemon.stats.snapshot_reader import take_snapshot
from pagetier.daemon.status.fleet_status import FleetStatus
from simulator.chapters import CARRIED, carry
from simulator.report import Results
from simulator.sampling import Vitals, vitals_in
from simulator.scenes import MIB, SimulatedScene
from simulator.schedule import Schedule
from simulator.shared_store import shared_store
from simulator.simulation import TICK_S, Simulation
from simulator.tally import Tally
from simulator.trends import Growth, Point, growth, thinned

_COUNTED: Final = ("written", "present", "dropped", "failed", "read", "unread", "damaged", "foreign", "openings")
_OUTAGE_S: Final = 4.0
_HANG_S: Final = 6.0
_READING_S: Final = 0.25
_LENT_S: Final = 10.0
_SERVING_S: Final = 60.0
_LONG_S: Final = 300.0
# Connections to a server come and go, and the worker keeps the memory of as many as there were at once.
_DESCRIPTORS: Final = {"folder": 3.0, "s3": 64.0}
_MEMORY_MIB: Final = {"folder": 2.0, "s3": 16.0}
_SHORT_MIB: Final = 8.0


class HostRound(Simulation):
    """One host. FleetRound calls what a round of one host does by itself."""

    def __init__(self, scene: SimulatedScene, seconds: float, seed: int, show: Callable[[Tally], None]) -> None:
        super().__init__(scene, seconds, seed, show)
        self._last, self.counts = Counter[str](), Counter[str]()

    @property
    def clock(self) -> float:
        """The time of the clock that deaths follow."""
        return self._clock.now

    def begin(self) -> None:
        """Plans the deaths."""
        scene, cluster = self.scene, self.cluster
        for act, mean in (
            (cluster.kill_engine, scene.engine_death),
            (cluster.stop_random_process, scene.stop),
            (cluster.kill_daemon, scene.daemon_death),
            (cluster.request_worker_death, scene.worker_death),
            (cluster.hang_worker, _HANG_S),
        ):
            self._schedule.add(act, mean, self._clock.now)

    def count(self) -> None:
        """Adds what the daemon has counted since the last call. Counts that fall are those of another daemon."""
        now = fleet_counts(take_snapshot(self.cluster.observer).fleet)
        if any(now[name] < count for name, count in self._last.items()):
            self._last.clear()
        self.counts.update(now - self._last)
        self._last = now

    def replace_daemon(self) -> None:
        """Kills the daemon when no bounce buffer is lent any more, and waits for the next one and its fleet.

        Pages that an engine did not complete would wait in the daemon's queue for ten seconds.

        Raises:
            RuntimeError: No daemon serves, or its fleet does not open.
        """
        cluster, daemon = self.cluster, self.cluster.daemon
        if not eventually(lambda: not take_snapshot(cluster.observer).fleet.lent_bytes, _LENT_S):
            cluster.violation(Kind.GREW, "bounce buffers are lent although nothing uses the fleet")
        self.count()
        killed = daemon.serving
        cluster.kill_daemon()

        def is_replaced() -> bool:
            cluster.maintain(time.monotonic())
            return daemon.serving not in (killed, None)

        if not eventually(is_replaced, _SERVING_S):
            raise RuntimeError(f"no daemon serves: {daemon.last_output()}")
        daemon.await_fleet()

    def exchange(self, other: HostRound) -> None:
        """Tells the judge of this host which pages engines of the other one have begun to store."""
        theirs, ours = (host.chapters.path(host.chapters.number) for host in (other, self))
        self.cluster.processes.result("judge", lambda: carry(read_journals(theirs), ours / CARRIED))

    def _live(self) -> None:
        self.begin()

    def _tick(self, now: float) -> None:
        """Does nothing: the newest prompt is that of the round."""


class FleetRound:
    """A round on two hosts. The arguments are those of Simulation."""

    def __init__(self, scene: SimulatedScene, seconds: float, seed: int, show: Callable[[Tally], None]) -> None:
        self.seconds, self.seed, self._show = seconds, seed, show
        self._rng = random.Random(seed)
        self.tally = Tally(rounds=1)
        self._readings: list[tuple[float, dict[str, Vitals]]] = []
        with ExitStack() as stack:
            self.store = shared_store(scene.fleet, self._rng)
            stack.callback(self.store.end)
            dying = msgspec.structs.replace(scene, fleet_url=self.store.url)
            steady = msgspec.structs.replace(dying, daemon_death=0.0, worker_death=0.0)
            self.hosts = [
                stack.enter_context(HostRound(each, seconds, seed, lambda tally: None)) for each in (dying, steady)
            ]
            self.hosts[1].cluster.rng.seed(seed + 1)  # other deaths, and pages with the same content
            self._end = stack.pop_all()
        self.scene = self.hosts[0].scene

    def run(self) -> Tally:
        """Runs the scene and returns its counts."""
        watch = Stopwatch()
        try:
            for host in self.hosts:
                host.cluster.start()
            self._live()
            for host in self.hosts:
                host.cluster.end_engines()
            self._audit()
        except RuntimeError as error:
            self.hosts[0].cluster.violation(Kind.HANG, str(error))
        for host in self.hosts:
            self.tally.add(host.sum_up())
            self.tally.pages.update({f"fleet {name}": count for name, count in host.counts.items()})
        self.tally.rounds = 1
        self.tally.seconds = watch.seconds
        return self.tally

    def results(self) -> Results:
        """Returns what the report shows of the store and of the host whose daemon lived."""
        counts = ", ".join(f"{self.tally.pages[f'fleet {name}']:,} {name}" for name in _COUNTED)
        note = f"{self.scene.name}: {self.tally.pages['objects damaged']:,} objects damaged; pages: {counts}.\n"
        return Results(notes=[note], growths=list(self.growths()))

    def growths(self) -> Iterator[Growth]:
        """Yields the growth of the daemon and the worker that lived."""
        skip = min(60.0, self.seconds / 4)
        for role in ("daemon", "worker"):
            its = [(at, found[role]) for at, found in self._readings if role in found]
            series = {
                "RssAnon": ("MiB", self._memory_limit(), [one.rss / MIB for _, one in its]),
                "descriptors": ("", _DESCRIPTORS[self.scene.fleet], [float(one.descriptors) for _, one in its]),
            }
            for name, (unit, limit, values) in series.items():
                points = [Point(at, one.pid, value) for (at, one), value in zip(its, values, strict=True)]
                kept = thinned(points, max(0.5, self.seconds / 90), skip)
                yield growth(f"{name}, {role}, {self.scene.name}", unit, kept, limit)

    def _memory_limit(self) -> float:
        limit = _MEMORY_MIB[self.scene.fleet]
        return limit if self.seconds > _LONG_S else max(limit, _SHORT_MIB)

    def keep_journals(self, folder: Path) -> None:
        """Copies the journals of each host to a folder."""
        for number, host in enumerate(self.hosts):
            host.keep_journals(folder / f"host-{number}")

    def _live(self) -> None:
        schedule, began, clock = Schedule(self._rng), time.monotonic(), self.hosts[0].clock
        schedule.add(self._damage, self.store.damage_s, began)
        schedule.add(self._outage, _OUTAGE_S, began)
        for host in self.hosts:
            host.begin()
        next_reading = began
        while (passed := self.hosts[0].clock - clock) < self.seconds:
            now = time.monotonic()
            self.store.maintain(now)
            schedule.run_due(now)
            for host in self.hosts:
                host.cluster.heartbeats.newest = int(passed / self.seconds * (self.scene.prompts - 1))
                host.step(now)
            if now >= next_reading:
                next_reading = now + _READING_S
                self._read(now - began)
            self._show(_sum(self.hosts))
            pace(TICK_S)
        self.store.maintain(float("inf"))

    def _damage(self) -> None:
        self.tally.pages["objects damaged"] += self.store.damage()

    def _outage(self) -> None:
        self.tally.deaths[self.store.outage] += self.store.fail()

    def _read(self, at: float) -> None:
        for host in self.hosts:
            host.count()
        self._readings.append((at, vitals_in(self.hosts[1].cluster)))

    def _audit(self) -> None:
        for host, other in (self.hosts, reversed(self.hosts)):
            host.exchange(other)
        for host in self.hosts:
            host.replace_daemon()
        for host in self.hosts:
            host.audit()
            host.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()


def fleet_counts(status: FleetStatus) -> Counter[str]:
    """Returns the counters of a daemon that a round sums up."""
    return Counter({name: getattr(status, name) for name in _COUNTED})


def _sum(hosts: Sequence[HostRound]) -> Tally:
    total = Tally()
    for host in hosts:
        total.add(host.tally)
    return total
