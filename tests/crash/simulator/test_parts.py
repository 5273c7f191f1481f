"""Tests the parts of the simulator: children, slots, evictions, daemons, schedules, journals and the report."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from core_records import attachment_with, header_with
from oracle.checker import WORKER_NAME, Kind, Violation
from oracle.journal import Reported
from pagetier.shm._core import KEY_BYTES, AttachmentRecord, IndexHeader
from pagetier.shm.exit_codes import Exit
from simulator.chapters import Chapters
from simulator.children import Child, ChildProcesses
from simulator.daemons import CacheDaemons
from simulator.eviction_accounting import EvictionAccounting
from simulator.leftovers import sweep
from simulator.report import Report
from simulator.scenes import SCENES, chain_of, soak_scene
from simulator.schedule import WorkClock
from simulator.slot_reuse import SlotReuse
from simulator.tally import Tally

KEY, OTHER = b"k" * KEY_BYTES, b"o" * KEY_BYTES


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[ChildProcesses]:
    alone = ChildProcesses(tmp_path)
    yield alone
    alone.end()


def test_the_ends_of_children_are_distinguished(processes: ChildProcesses) -> None:
    def fail() -> None:
        raise ValueError("for a reason")

    well, bad = processes.fork("well", lambda: None), processes.fork("bad", fail)
    hit, killed = processes.fork("hit", signal.pause), processes.fork("killed", signal.pause)
    os.kill(hit.pid, signal.SIGKILL)
    processes.kill(killed)
    for child in (well, bad, hit, killed):
        processes.wait(child)
    assert (well.code, bad.code, hit.code, killed.code) == (0, 1, -signal.SIGKILL, -signal.SIGKILL)
    assert [child.killed for child in (well, bad, hit, killed)] == [False, False, False, True]
    assert "for a reason" in processes.last_output(bad)


def test_a_child_that_does_not_end_in_time_is_killed(processes: ChildProcesses) -> None:
    child = processes.fork("asleep", signal.pause)
    assert processes.wait(child, 0.05) == [child] and child.killed


def test_the_result_of_a_child_is_returned_and_its_error_raised(processes: ChildProcesses) -> None:
    assert processes.result("well", lambda: [1, 2]) == b"[1,2]"
    with pytest.raises(RuntimeError, match=r"the bad ended with 1(.|\n)*ZeroDivisionError"):
        processes.result("bad", lambda: 1 // 0)


def test_a_slot_that_is_not_free_in_time_is_a_violation() -> None:
    slot_reuse = SlotReuse(late=5.0)
    slot_reuse.observe(1, set(), 10.0)
    slot_reuse.died(7, 10.0)
    slot_reuse.died(8, 10.0)
    slot_reuse.observe(1, {7, 8}, 10.75)
    slot_reuse.observe(1, {7}, 11.0)
    assert slot_reuse.pending and not slot_reuse.violations
    slot_reuse.observe(1, {7}, 15.25)
    assert [found.kind for found in slot_reuse.violations] == [Kind.LATE] and not slot_reuse.pending
    slot_reuse.end()
    assert slot_reuse.returned == [5.25, 1.0]


def test_the_clock_stands_while_the_daemon_is_stopped() -> None:
    slot_reuse = SlotReuse(late=5.0)
    slot_reuse.observe(1, set(), 10.0)
    slot_reuse.died(7, 10.0)
    for second in range(2):
        slot_reuse.observe(1, {7}, 10.5 + 2 * second)
        slot_reuse.daemon_stopped(10.75 + 2 * second)
        assert not slot_reuse.violations
        slot_reuse.observe(1, {7}, 11.75 + 2 * second)
    slot_reuse.observe(1, {7}, 17.0)
    assert not slot_reuse.violations
    slot_reuse.observe(1, {7}, 17.25)
    assert [found.kind for found in slot_reuse.violations] == [Kind.LATE]


def test_only_deaths_in_long_lives_of_daemons_are_measured() -> None:
    slot_reuse = SlotReuse(late=5.0)
    for life, lasts in enumerate((0.5, 2.0)):
        began = 10.0 * life
        slot_reuse.observe(life, set(), began)
        slot_reuse.died(7 + life, began)
        slot_reuse.observe(life, set(), began + 0.25)
        slot_reuse.died(17 + life, began + lasts - 0.25)
        slot_reuse.observe(life, set(), began + lasts)
        slot_reuse.no_daemon()
    assert slot_reuse.returned == [0.25]


def test_a_slot_that_outlasts_a_daemon_is_measured_again_with_the_next() -> None:
    slot_reuse = SlotReuse(late=5.0)
    slot_reuse.observe(1, set(), 10.0)
    slot_reuse.died(7, 10.0)
    slot_reuse.observe(1, {7}, 11.5)
    slot_reuse.observe(2, {7}, 20.0)
    assert slot_reuse.returned == [1.5] and slot_reuse.pending
    slot_reuse.observe(2, set(), 20.25)
    slot_reuse.end()
    assert slot_reuse.returned == [1.5, 0.25] and not slot_reuse.violations


class Counters:
    """The counters of a daemon, as an observer sees them."""

    def __init__(self) -> None:
        self.numbers = dict.fromkeys(
            ("evicted", "disk_lost", "disk_evicted", "disk_skipped", "disk_failed", "disk_frames"), 0
        )
        self.worker = 0

    def header(self) -> IndexHeader:
        return header_with(incarnation=1, **self.numbers)

    def attachments_with_pins(self) -> list[AttachmentRecord]:
        return [attachment_with(WORKER_NAME, pid=self.worker)] if self.worker else []

    def happens(self, worker: int, frames: int, **more: int) -> None:
        self.worker, self.numbers["disk_frames"] = worker, frames
        for name, pages in more.items():
            self.numbers[name] += pages


def test_evicted_pages_count_as_lost_only_while_no_disk_is_open() -> None:
    counters = Counters()
    evictions = EvictionAccounting(counters)  # type: ignore[arg-type]
    counters.happens(worker=0, frames=0, evicted=3)
    assert evictions.pages == 3
    counters.happens(worker=5, frames=9, evicted=10)
    assert evictions.pages == 13
    counters.happens(worker=5, frames=9, evicted=100, disk_lost=2, disk_evicted=1)
    assert evictions.pages == 16
    counters.happens(worker=6, frames=9, evicted=20)
    assert evictions.pages == 36
    counters.happens(worker=6, frames=0, evicted=1000)
    counters.happens(worker=0, frames=0)
    assert evictions.pages == 1036


def test_a_run_removes_only_the_remains_of_dead_runs(tmp_path: Path, processes: ChildProcesses) -> None:
    gone = processes.fork("gone", lambda: None)
    processes.wait(gone)
    for name in (f"pagetier-storm-{gone.pid}-a.index", f"pagetier-storm-{os.getpid()}-a.index", "pagetier-storm-x"):
        (tmp_path / name).touch()
    (tmp_path / f"pagetier-storm-{gone.pid}-b").mkdir()
    assert sorted(sweep(tmp_path)) == [f"pagetier-storm-{gone.pid}-a.index", f"pagetier-storm-{gone.pid}-b"]
    assert len(list(tmp_path.glob("pagetier-*"))) == 2 and sweep(tmp_path) == []


@pytest.fixture
def daemon(processes: ChildProcesses) -> Iterator[CacheDaemons]:
    alone = CacheDaemons(SCENES[0], processes)
    yield alone
    alone.remove()


@pytest.mark.parametrize(
    ("codes", "well"),
    [
        ([Exit.REFUSED, Exit.OK], [True, False]),
        ([Exit.REFUSED, Exit.REFUSED], [False, False]),
        ([Exit.REFUSED], [False]),
        ([Exit.OK], [False]),
    ],
)
def test_a_daemon_may_end_only_if_it_is_rejected_beside_another(
    daemon: CacheDaemons, codes: list[int], well: list[bool]
) -> None:
    """Checks daemons that ran at the same time, in the order of their start."""
    children = [Child(1 << 30, "daemon", number) for number in range(len(codes))]
    for child in children:
        daemon.note(child)
    for child, code in zip(children, codes, strict=True):
        child.status = code << 8
    assert [daemon.ended_well(child) for child in children] == well


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        ("level=error name=asyncio msg=x", True),
        ("level=critical name=pagetierd msg=x", True),
        ("Traceback (most recent call last):", True),
        ('level=info name=pagetierd event=ready msg="an error is not logged"', False),
        ("level=error name=pagetierd event=refused msg=x", False),
    ],
)
def test_unexpected_log_lines_are_complaints(daemon: CacheDaemons, line: str, bad: bool) -> None:
    daemon.note(Child(1 << 30, "daemon", 0))
    (Path(daemon.folder.name) / "log-0").write_text(line + "\n")
    assert daemon.complaints() == [line] * bad


def test_a_run_continues_until_the_required_counts_are_reached() -> None:
    tally = Tally(rounds=1)
    enough = Counter(engine_deaths=2, daemon_deaths=1, disk_reads=3, rounds=1)
    tally.deaths.update({"rank": 2, "daemon": 1})
    assert not enough <= tally.work
    tally.pages["disk_read"] = 3
    assert enough <= tally.work and Counter(rounds=0) <= Tally().work
    assert not Counter(fleet_reads=1) <= tally.work
    tally.pages["fleet read"] = 1
    assert Counter(fleet_reads=1) <= tally.work


def test_the_clock_of_deaths_is_slow_while_little_work_is_done() -> None:
    clock = WorkClock(100, now=50.0)
    assert clock.advance(51.0, steps=1000) == 51.0
    assert clock.advance(52.0, steps=1050) == 51.5
    assert clock.advance(53.0, steps=1050) == 51.75
    assert WorkClock(0, now=50.0).advance(51.0, steps=0) == 51.0


def test_prompts_share_prefixes_and_progress_with_the_run() -> None:
    one, other = chain_of(17), chain_of(18)
    assert one.keys[:3] == other.keys[:3] and one.keys[3] != other.keys[3]
    rng = random.Random(1)
    early, late = ([SCENES[0].pick(rng, newest) for _ in range(200)] for newest in (150, 1350))
    assert max(early) <= 150 < max(late)


def test_prompts_of_a_soak_repeat_and_are_chosen_from_the_last_half() -> None:
    scene, rng = soak_scene(60), random.Random(1)
    picked = {scene.pick(rng, 10 * scene.prompts) for _ in range(1000)}
    assert min(picked - {0}) > scene.prompts // 2 and max(picked) < scene.prompts


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
    verdicts = [chapters.judge(number) for number in range(3)]
    kinds = [{violation.kind for violation in verdict.violations} for verdict in verdicts]
    assert kinds == [set(), set(), {Kind.NOWHERE, Kind.BYTES}]
    assert [verdict.responses.get("hit") for verdict in verdicts] == [None, 1, 1]
    assert [chapters.path(number).exists() for number in range(3)] == [False, False, True]


def test_a_report_lists_broken_promises() -> None:
    tally = Tally(rounds=1, violations=[Violation(Kind.LOST, "for a reason", KEY)])
    tally.deaths.update({"engine": 2, "rank": 3, "daemon": 4, "engine, by itself": 5})
    tally.pages.update({"evicted": 77})
    tally.returned += [0.5, 0.5, 0.5, 1.5]
    tally.disk_use += [0.5, 0.25]
    report = Report("Random death", 3, scenes={"a scene": tally}, journals=["kept"])
    assert (report.tally.engine_deaths, report.tally.daemon_deaths) == (5, 4)
    assert "| a scene | 1 | 77 | 0 |" in report.markdown() and "| 50.0 | 4 | 1 |" in report.markdown()
    assert "| rank | 3 |" in report.markdown() and "for a reason" in report.markdown()
    assert "kept" in report.markdown()
