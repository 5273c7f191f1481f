"""Tests the figures of the race: ratios, losses and goals in its report, and the parts that judge what was served."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from race.contests.trust.failures import _flip
from race.contests.trust.observation import PAGE, PAGES, Call, Observation
from race.engine_process import Answer, Served, fill_page, judge
from race.report.markdown import document
from race.report.ratios import Verdict, compare
from race.results import Absent, Figures, Form, Observed, Race, Run, contest_of, merge, read, save

SLOWER = Figures("lookup", "a hit", "ms", "low", {"pagetier": [2.0] * 6, "files": [1.0] * 6})
FASTER = Figures("copies", "a load", "x memcpy", "high", {"pagetier": [2.0] * 6, "files": [1.0] * 6})
NOISE = Figures("disk", "a read", "x", "high", {"pagetier": [1.0, 2.0] * 3, "files": [2.0, 1.0] * 3})
RUN = Run("a machine", "2026-01-01 00:00", Form.QUICK, (0.1, 0.2), {"pagetier": "1"}, 3.0)


def race_of(*lines: Figures | Observed | Absent) -> Race:
    return Race(list(lines), {contest_of(line): RUN for line in lines})


def observed(failure: str, system: str, served: Served, waited: float, *calls: Call) -> Observed:
    return Observed(Observation(failure, system, "1", served, waited=waited, calls=list(calls)))


def lost(*lines: Figures | Observed | Absent) -> str:
    """Returns the section of what pagetier loses."""
    return document(race_of(*lines)).split("## What pagetier loses")[1].split("\n## ")[0]


@pytest.mark.parametrize(
    ("figures", "value", "verdict"),
    [(SLOWER, 0.5, Verdict.BEHIND), (FASTER, 2.0, Verdict.AHEAD), (NOISE, 1.25, Verdict.OPEN)],
)
def test_a_ratio_is_above_one_where_pagetier_is_better(figures: Figures, value: float, verdict: Verdict) -> None:
    ratio = compare(figures, "files")
    assert (ratio.value, ratio.verdict) == (value, verdict)


def test_the_report_counts_and_names_what_pagetier_loses() -> None:
    section = lost(FASTER, SLOWER, NOISE)
    assert "**0.5 (0.5 to 0.5)**" in section and "a load" not in section
    assert "ahead in 1 and behind in 1; in 1" in section


def test_fewer_right_pages_or_a_longer_wait_for_as_many_are_losses() -> None:
    burst = [("pagetier", 254), ("files", 256), ("LMCache", 200)]
    section = lost(
        *(observed("burst", name, Served(right, 0, 512 - right), 0.1) for name, right in burst),
        observed("disk_full", "pagetier", Served(254, 0, 2), 0.186),
        observed("disk_full", "vLLM native", Served(256), 0.118),
        observed("disk_full", "peers", Served(64, 0, 192), 0.1),
    )
    assert "files 256" in section and "vLLM native 118 ms" in section
    assert "LMCache" not in section and "peers" not in section


def test_a_goal_is_missed_if_one_case_is_behind_and_open_if_none_is_certain() -> None:
    def case_of(name: str, ours: float) -> Figures:
        return Figures("serving", name, "ms", "low", {"pagetier": [ours] * 6, "vLLM native": [1.0] * 6})

    for others, end in ((0.25, "met"), (2.0, "**missed**"), (1.0, "undecided")):
        cases = case_of("first token of 260 tokens, from memory", 0.5), case_of("x, from memory", others)
        goal = document(race_of(*cases)).split("ahead of native at every length: ")[1]
        assert goal.startswith(end)


def test_wrong_pages_missing_answers_and_absent_systems_are_shown_with_the_run_of_their_contest() -> None:
    seen = Observation("burst", "pagetier", "1", Served(3, 2, 1), waited=0.25)
    silent = Observation("server_stopped", "pagetier", "1", unanswered=1)
    race = race_of(Absent("disk", "LMCache", "not\ninstalled"))
    merge(race, "trust", [Observed(seen), Observed(silent)], Run("another", "1", Form.QUICK, (7.0, 8.0), {}, 3.0))
    text = document(race)
    for fact in ("**2 wrong**", "no answer", "not installed", "a machine", "another", "7.0"):
        assert fact in text


def test_results_are_read_as_they_were_saved_and_a_contest_replaces_its_own_lines(tmp_path: Path) -> None:
    race = race_of(SLOWER, Observed(Observation("burst", "files", "1")))
    early = Figures("lookup", FASTER.case, "x memcpy", "high", {"pagetier": [1.0]})
    merge(race, "lookup", [early, FASTER, Absent("lookup", "LMCache", "gone")], RUN)
    save(race, tmp_path / "race.json")
    again = read(tmp_path / "race.json")
    assert again == race
    assert [type(line) for line in again.lines] == [Observed, Figures, Absent]


def test_one_changed_byte_of_a_page_is_wrong() -> None:
    out = np.zeros((4, 4096), np.uint8)
    for number in range(3):
        fill_page(out[number], 7, number)
    assert judge(7, out, 3) == Served(right=3, missed=1)
    out[1, 4095] ^= 1
    assert judge(7, out, 3) == Served(right=2, wrong=1, missed=1)
    assert judge(8, out, 3) == Served(wrong=3, missed=1)


def test_four_kib_of_each_page_in_a_file_are_changed(tmp_path: Path) -> None:
    page, file = np.empty(PAGE, np.uint8), tmp_path / "pages"
    fill_page(page, 1, PAGES - 1)
    file.write_bytes(b"header" + page.tobytes())
    assert _flip(file) == 1
    changed = np.frombuffer(file.read_bytes()[6:], np.uint8) != page
    assert changed.sum() == 4096 and judge(1, page[None], 1).wrong == 1


def test_an_observation_remembers_the_longest_call_and_each_error_once() -> None:
    seen = Observation("burst", "files", "1")
    for seconds in (0.1, 0.3):
        seen.loaded(Answer(None, seconds, error="OSError: full"))
    seen.loaded(Answer(Served(right=2), 0.2))
    assert (seen.waited, seen.errors, seen.served) == (0.3, ["OSError: full"], Served(right=2, missed=32))
