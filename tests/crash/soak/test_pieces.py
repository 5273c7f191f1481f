"""Tests how a soak is judged: growth and slowdown are found, and noise is not mistaken for them."""

from __future__ import annotations

import math
import mmap
import os
import socket
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import lmdb
import msgspec
import numpy as np
import pytest

from chaos.round_counts import Tally
from oracle.checker import Kind
from oracle.journal import Reported
from pagetier.shm._core import KEY_BYTES
from seeded_random import chance
from soak.chart import Line, Panel, chart, from_zero, in_ratios
from soak.chart_panels import picture
from soak.journal_rotation import Chapters, Verdict
from soak.latency_histogram import BUCKETS, Counts, Times, longest, quantile
from soak.plan import WINDOWS, Plan
from soak.probe import Timed
from soak.report import Measured, growths_of, report_of
from soak.report_tables import markdown
from soak.sampling import Reading, Vitals, readers, vitals
from soak.slope_test import Growth, Point, judged, slope_of, thinned
from soak.slowdown_test import Windows, drift

HOUR = 3600.0
KEY, OTHER = b"k" * KEY_BYTES, b"o" * KEY_BYTES


def walk(rng: np.random.Generator, lives: int, slope: float, noise: float = 0.3) -> list[Point]:
    """Returns a value a minute for an hour in each life, with a slope per hour; each life starts at about 30."""
    return [
        Point(HOUR * life + 60.0 * minute, life, 30 + slope * minute / 60 + float(rng.normal(0, noise)))
        for life in range(lives)
        for minute in range(60)
    ]


def grown(points: list[Point]) -> Growth:
    return judged("x", "MiB", points, limit=2.0)


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
    assert not grown(saw).flat and slope_of(saw).each_hour == pytest.approx(60)


def test_an_outlier_is_no_growth_and_few_points_prove_nothing() -> None:
    rng = chance()
    points = walk(rng, 1, 0.0)
    points[-1] = Point(points[-1].at, 0, 3000.0)
    assert grown(points).flat
    assert slope_of(points[:2]).low == -math.inf and grown(points[:1]).flat


def test_the_start_of_a_life_does_not_count() -> None:
    points = [Point(float(at), 1, min(at, 10)) for at in range(100)]
    kept = thinned(points, every=5.0, skip=10.0)
    assert {point.value for point in kept} == {10} and len(kept) == 18


def counts_of(seconds: np.ndarray) -> Counts:
    times = Times(1, 1)
    for one in seconds:
        times.note(0, 0, float(one))
    return np.asarray(times.counts()[0])


def test_quantiles_are_right_within_a_step_of_the_scale() -> None:
    seconds = chance().lognormal(math.log(5e-6), 1.0, 20_000)
    counts = counts_of(seconds)
    for share in (0.5, 0.99, 0.999):
        assert quantile(counts, share) == pytest.approx(float(np.quantile(seconds, share)), rel=0.03)
    assert longest(counts) >= seconds.max() * 0.999 and longest(counts) <= seconds.max() * 1.03
    assert math.isnan(quantile(np.zeros(BUCKETS, dtype=np.int64), 0.5))


def part(rng: np.random.Generator, speed: float, scale: float = 5e-6) -> list[Counts]:
    return [counts_of(speed * rng.lognormal(math.log(scale), 0.4, 1500)) for _ in range(WINDOWS)]


def slower(calls: float, machine: float, share: float = 0.99) -> bool:
    """Returns whether calls that take `calls` times as long are found slower, if the machine takes `machine` times."""
    rng = chance()
    control = part(rng, 1.0, 2e-6), part(rng, machine, 2e-6)
    return not drift("match", share, Windows(part(rng, 1.0), part(rng, calls), *control)).equal


def test_slower_calls_are_found_and_a_slower_machine_is_not() -> None:
    assert slower(calls=1.6, machine=1.0) and slower(calls=1.6, machine=1.0, share=0.5)
    assert not slower(calls=1.0, machine=1.0) and not slower(calls=1.0, machine=1.0, share=0.5)
    assert not slower(calls=3.0, machine=3.0)
    assert slower(calls=6.0, machine=3.0)
    assert not slower(calls=1.0, machine=0.5)


def measured(leak: float = 0.0, drag: float = 1.0) -> Measured:
    """Returns an hour of one daemon that gains `leak` MiB and whose calls are `drag` times slower at the end."""
    rng, plan = chance(), Plan.of(HOUR, 1)
    readings = [
        Reading(
            at=float(at),
            daemon=Vitals(7, int((30 + leak * at / HOUR + rng.normal(0, 0.2)) * 2**20), 27 + int(rng.integers(0, 3))),
            worker=Vitals(8, 20 << 20, 14) if at % 100 else None,
            probe=Vitals(9, 40 << 20, 9),
            readers=int(rng.integers(0, 4)),
            disk=100 << 20,
            shm=32 << 20,
            used_frames=100,
            pages=30,
            slots=11,
            open_entries=3,
        )
        for at in range(0, int(HOUR), 10)
    ]
    windows = np.zeros((3 * WINDOWS, len(Timed), BUCKETS), dtype=np.int64)
    for number, window in enumerate(windows):
        for kind in Timed:
            slow = drag if number >= 2 * WINDOWS and kind is Timed.RESERVE else 1.0
            window[kind] = counts_of(slow * rng.lognormal(math.log(1e-5), 0.3, 300))
    return Measured(plan, Tally(rounds=1), readings, windows, warm=True)


def test_a_report_fails_only_for_growth_and_slowdown() -> None:
    for run, bad in ((measured(), ()), (measured(leak=8), ("GROWS",)), (measured(drag=2), ("SLOWER",))):
        report = report_of(run, "a machine", "It was alone.")
        text = markdown(report, "x.svg")
        assert report.failed is bool(bad), text
        assert [word for word in ("GROWS", "SLOWER") if word in text] == list(bad)
        assert msgspec.json.decode(msgspec.json.encode(report))["seconds"] == HOUR
        ElementTree.fromstring(picture(report, run.readings))


def test_growth_of_the_disk_is_judged_only_if_it_was_full() -> None:
    run = measured()
    assert "disk" in {growth.name for growth in growths_of(run)}
    cold = msgspec.structs.replace(run, warm=False)
    assert "disk" not in {growth.name for growth in growths_of(cold)}


def test_a_chart_is_valid_with_any_values() -> None:
    lines = [Line("a < b", [0.0, 1.0, 2.0], [1.0, math.nan, 3.0]), Line("none", [], [])]
    drawn = chart("t & u", 120.0, [Panel("p", lines, from_zero(lines)), Panel("q", lines, in_ratios(lines))], [1.0])
    assert len(ElementTree.fromstring(drawn).findall(".//{http://www.w3.org/2000/svg}path")) == 4


def test_chapters_are_judged_in_order_and_know_earlier_stores(tmp_path: Path) -> None:
    chapters = Chapters(tmp_path)
    with chapters.journal() as journal:
        journal.write(Reported.STORING, KEY)
        chapters.turn()
        journal.write(Reported.HIT, KEY)
        chapters.turn()
        journal.write(Reported.HIT, OTHER)
        journal.write(Reported.WRONG, KEY, note="for a reason")
        chapters.turn()
    kinds, responses = [], Counter[str]()
    for number in range(3):
        chapters.judge(number, tmp_path / "verdict")
        verdict = msgspec.json.decode((tmp_path / "verdict").read_bytes(), type=Verdict)
        kinds.append({violation.kind for violation in verdict.violations})
        responses.update(verdict.responses)
    assert kinds == [set(), set(), {Kind.NOWHERE, Kind.BYTES}] and responses == Counter(storing=1, hit=2, wrong=1)
    assert [chapters.path(number).exists() for number in range(3)] == [False, False, True]


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
