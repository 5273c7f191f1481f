"""What random death stands on: children whose ends are told apart, the dead that are waited for, and moments."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from oracle.checker import Kind, Violation
from storm.family import Family
from storm.fates import Fates
from storm.report import Report
from storm.scene import SCENES, chain_of, pick
from storm.slots import Mourning
from storm.tally import Tally


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    alone = Family(tmp_path)
    yield alone
    alone.end()


def test_ends_are_told_apart(family: Family) -> None:
    def fail() -> None:
        raise ValueError("for a reason")

    well, bad = family.fork("well", lambda: None), family.fork("bad", fail)
    hit, killed = family.fork("hit", signal.pause), family.fork("killed", signal.pause)
    os.kill(hit.pid, signal.SIGKILL)
    family.kill(killed)
    for child in (well, bad, hit, killed):
        family.wait(child)
    assert (well.code, bad.code, hit.code, killed.code) == (0, 1, -signal.SIGKILL, -signal.SIGKILL)
    assert [child.killed for child in (well, bad, hit, killed)] == [False, False, False, True]
    assert "for a reason" in family.last_words(bad)


def test_who_does_not_end_in_time_is_killed(family: Family) -> None:
    child = family.fork("asleep", signal.pause)
    assert family.wait(child, 0.05) == [child] and child.killed


def test_a_slot_that_does_not_come_back_in_time_is_a_violation() -> None:
    mourning = Mourning()
    mourning.died(7, 10.0)
    mourning.died(8, 10.0)
    mourning.look({7, 8}, 10.9)
    mourning.look({7}, 11.0)
    assert mourning.returned == [1.0] and mourning.waits and not mourning.violations
    mourning.look({7}, 12.6)
    assert [found.kind for found in mourning.violations] == [Kind.LATE] and not mourning.waits


def test_time_without_a_daemon_is_nobody_s_time() -> None:
    mourning = Mourning()
    mourning.died(7, 10.0)
    mourning.no_daemon(20.0)
    mourning.look({7}, 20.5)
    mourning.look(set(), 20.75)
    assert mourning.returned == [0.75] and not mourning.violations


def test_moments_come_as_often_as_they_should_and_never_where_there_are_none() -> None:
    often: list[int] = []
    never: list[int] = []
    fates = Fates(random.Random(1), 0.0)
    fates.add(lambda: often.append(1), 0.1)
    fates.add(lambda: never.append(1), 0.0)
    for tick in range(1000):
        fates.pass_on(tick / 10)
    assert 850 < len(often) < 1150 and not never


def test_prompts_share_beginnings_and_come_up_in_turn() -> None:
    one, other = chain_of(17), chain_of(18)
    assert one.keys[:3] == other.keys[:3] and one.keys[3] != other.keys[3]
    rng = random.Random(1)
    early, late = ([pick(rng, SCENES[0], progress) for _ in range(200)] for progress in (0.1, 0.9))
    assert max(early) <= 150 < max(late)


def test_a_report_says_what_was_broken() -> None:
    tally = Tally(rounds=1, violations=[Violation(Kind.LOST, "for a reason", b"k" * 32)])
    tally.deaths.update({"engine": 2, "rank": 3, "daemon": 4, "engine, by itself": 5})
    report = Report.of(3, tally, [Path("kept")])
    assert (report.engine_deaths, report.daemon_deaths) == (5, 4)
    assert "| rank | 3 |" in report.markdown() and "for a reason" in report.markdown()
    assert report.journals == ["kept"]
