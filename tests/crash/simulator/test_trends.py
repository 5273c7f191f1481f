"""Tests how a soak is judged: growth and slowdown are found, and noise is not mistaken for them."""

from __future__ import annotations

import math
import mmap
import os
import socket
from pathlib import Path

import lmdb
import msgspec
import numpy as np
import pytest

from seeded_random import chance
from simulator.call_times import Call, CallTimes, latencies, read_times
from simulator.probe import CONTROLS
from simulator.report import Report
from simulator.sampling import Reading, Vitals, readers, vitals
from simulator.soak import WINDOWS, Measured, Plan
from simulator.trends import Growth, Point, Windows, drift, growth, thinned

HOUR = 3600.0


def walk(rng: np.random.Generator, lives: int, slope: float, noise: float = 0.3) -> list[Point]:
    """Returns a value a minute for an hour in each life, with a slope per hour; each life starts at about 30."""
    return [
        Point(HOUR * life + 60.0 * minute, life, 30 + slope * minute / 60 + float(rng.normal(0, noise)))
        for life in range(lives)
        for minute in range(60)
    ]


def grown(points: list[Point]) -> Growth:
    return growth("x", "MiB", points, limit=2.0)


@pytest.mark.parametrize("lives", [1, 4])
def test_growth_is_found_and_noise_is_not(lives: int) -> None:
    rng = chance()
    assert not grown(walk(rng, lives, slope=4.0)).flat
    assert grown(walk(rng, lives, slope=0.0)).flat
    assert grown(walk(rng, lives, slope=-4.0)).flat


def test_a_leak_in_each_life_is_found_and_a_higher_start_is_none() -> None:
    points = [Point(60.0 * at, at // 10, 30.0 + 3 * (at // 10)) for at in range(60)]
    assert grown(points).flat
    saw = [Point(60.0 * at, at // 10, 30.0 + at % 10) for at in range(60)]
    assert not grown(saw).flat and grown(saw).each_hour == pytest.approx(60)


def test_an_outlier_is_no_growth_and_few_points_prove_nothing() -> None:
    rng = chance()
    points = walk(rng, 1, 0.0)
    points[-1] = Point(points[-1].at, 0, 3000.0)
    assert grown(points).flat
    assert grown(points[:2]).low is None and grown(points[:1]).flat


def test_the_start_of_a_life_does_not_count() -> None:
    points = [Point(float(at), 1, min(at, 10)) for at in range(100)]
    kept = thinned(points, every=5.0, skip=10.0)
    assert {point.value for point in kept} == {10} and len(kept) == 18


def test_the_durations_of_calls_are_read_by_kind_and_time(tmp_path: Path) -> None:
    for _ in range(2):
        times = CallTimes(tmp_path)
        for took in (0.001, 0.003, 0.002):
            times.note(Call.MATCH, took)
        assert times.timed(Call.LOAD, sum, [1, 2], start=3) == 6
    with next(tmp_path.iterdir()).open("ab") as torn:
        torn.write(b"torn")
    (match, load), read = latencies(read_times(tmp_path)), read_times(tmp_path)
    assert (match.call, match.count, match.p50, match.most) == ("match", 6, 2.0, 3.0) and load.count == 2
    assert len(read) == 8 and np.all(np.diff(read["at"]) >= 0)


def part(rng: np.random.Generator, speed: float, scale: float = 5e-6) -> Windows:
    return [speed * rng.lognormal(math.log(scale), 0.4, 1500) for _ in range(WINDOWS)]


def slower(calls: float, machine: float, share: float = 0.99) -> bool:
    """Returns whether calls that take `calls` times as long are found slower, if the machine takes `machine` times."""
    rng = chance()
    control = part(rng, 1.0, 2e-6), part(rng, machine, 2e-6)
    return not drift("match", share, (part(rng, 1.0), part(rng, calls), *control)).equal


def test_slower_calls_are_found_and_a_slower_machine_is_not() -> None:
    assert slower(calls=1.6, machine=1.0) and slower(calls=1.6, machine=1.0, share=0.5)
    assert not slower(calls=1.0, machine=1.0) and not slower(calls=1.0, machine=1.0, share=0.5)
    assert not slower(calls=3.0, machine=3.0)
    assert slower(calls=6.0, machine=3.0)
    assert not slower(calls=1.0, machine=0.5)


def measured(leak: float = 0.0, drag: float = 1.0) -> Measured:
    """Returns an hour of one daemon that gains `leak` MiB and whose calls are `drag` times slower at the end."""
    rng, seconds = chance(), int(HOUR)
    memory = [int((30 + leak * at / HOUR + rng.normal(0, 0.2)) * 2**20) for at in range(seconds)]
    readings = [
        Reading(
            at=float(at),
            processes={
                "daemon": Vitals(7, memory[at], int(rng.integers(27, 30))),
                **({"worker": Vitals(8, 20 << 20, 14)} if at % 100 else {}),
                "probe": Vitals(9, 40 << 20, 9),
            },
            numbers={"LMDB readers": 1, "/dev/shm": 32, "slots": 11, "pages being written": 3, "disk": 100},
        )
        for at in range(0, seconds, 10)
    ]
    times = read_times(Path("/nonexistent"))
    for call in {*CONTROLS, *CONTROLS.values()}:
        its = np.zeros(3 * seconds, times.dtype)
        its["at"], its["call"] = np.arange(3 * seconds) / 3, call
        slow = np.where((its["at"] > HOUR - 600) & (call is Call.RESERVE), drag, 1.0)
        its["took"] = slow * rng.lognormal(math.log(1e-5), 0.3, len(its))
        times = np.concatenate([times, its])
    return Measured(Plan.of(HOUR), readings, times, warm=True)


def test_a_report_fails_only_for_growth_and_slowdown() -> None:
    for run, bad in ((measured(), ()), (measured(leak=8), ("GROWS",)), (measured(drag=2), ("SLOWER",))):
        report = Report("A soak", 1, results=run.results(1))
        text = report.markdown()
        assert bool(report.violations) is bool(bad), text
        assert [word for word in ("GROWS", "SLOWER") if word in text] == list(bad)
        assert len(report.results.timeline["match p99, µs"]) == WINDOWS
        assert msgspec.json.decode(msgspec.json.encode(report))["title"] == "A soak"


def test_growth_of_the_disk_is_judged_only_if_it_was_full() -> None:
    run = measured()
    assert "disk" in {one.name for one in run.growths()}
    cold = msgspec.structs.replace(run, warm=False)
    assert "disk" not in {one.name for one in cold.growths()}


def test_readers_of_lmdb_are_counted(tmp_path: Path) -> None:
    assert readers(tmp_path) == 0
    for name, count in (("0", 3), ("1", 1)):
        (tmp_path / name).mkdir()
        environment = lmdb.open(str(tmp_path / name))
        before = readers(tmp_path)
        held = [environment.begin() for _ in range(count)]
        assert readers(tmp_path) == before + count == before + environment.readers().count(str(os.getpid()))
        for transaction in held:
            transaction.abort()
        environment.close()


def test_measurements_belong_to_their_process() -> None:
    before = vitals(os.getpid())
    ours, theirs = socket.socketpair()
    with mmap.mmap(
        -1, 32 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    ) as filler:  # memory from the heap may be some that an earlier test touched
        filler.write(bytes(len(filler)))
        after = vitals(os.getpid())
        assert before and after and after.descriptors == before.descriptors + 2
        assert after.rss - before.rss > len(filler) // 2
    ours.close()
    theirs.close()
    assert vitals(1 << 30) is None
