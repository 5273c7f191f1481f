"""Tests the report of the race on stored results, and the parts that judge what an engine was served."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest

from race.contests.trust.failures import _flip
from race.contests.trust.observation import PAGE, PAGES, Call, Observation
from race.engine_process import Answer, Served, fill_page, judge, tokens_of
from race.report.bar_chart import bar_chart
from race.report.markdown import document
from race.report.ratios import Verdict, compare
from race.results import Absent, Figures, Form, Observed, Race, Run, contest_of, merge, read, save

SLOWER = Figures("lookup", "a hit", "ms", "low", {"pagetier": [2.0] * 6, "files": [1.0] * 6})
FASTER = Figures("copies", "a load", "x memcpy", "high", {"pagetier": [2.0] * 6, "files": [1.0] * 6})
NOISE = Figures("disk", "a read", "x", "high", {"pagetier": [1.0, 2.0] * 3, "files": [2.0, 1.0] * 3})


RUN = Run("a machine", "2026-01-01 00:00", Form.QUICK, (0.1, 0.2), {"pagetier": "1"}, 3.0)


def race_of(*lines: Figures | Observed | Absent) -> Race:
    return Race(list(lines), {contest_of(line): RUN for line in lines})


@pytest.mark.parametrize(
    ("figures", "value", "verdict"),
    [(SLOWER, 0.5, Verdict.BEHIND), (FASTER, 2.0, Verdict.AHEAD), (NOISE, 1.25, Verdict.OPEN)],
)
def test_a_ratio_is_above_one_where_pagetier_is_better(figures: Figures, value: float, verdict: Verdict) -> None:
    ratio = compare(figures, "files")
    assert (ratio.value, ratio.verdict) == (value, verdict)


def test_the_report_begins_with_what_pagetier_loses() -> None:
    text = document(race_of(FASTER, SLOWER, NOISE))
    lost, rest = text.split("## What pagetier loses")[1].split("## Is it cached?")
    assert "a hit | files | 2 (2 to 2) | 1 (1 to 1) | **0.5 (0.5 to 0.5)**" in lost
    assert "a load" not in lost and "ahead in 1 and behind in 1; in 1" in lost
    assert "a load | x memcpy | 2 (2 to 2)" in rest


def test_each_loss_has_its_reason_once_or_none_is_known() -> None:
    lengths = [case_of(f"first token of {tokens} tokens, computed", 2.0) for tokens in (260, 1030)]
    lost = document(race_of(SLOWER, *lengths)).split("Why:")[1].split("Of 3 comparisons")[0]
    assert lost.count("- First tokens, computed (vLLM native): pagetier prepares") == 1
    assert "- a hit (files): the reason is not known." in lost and "warm reads" not in lost


def test_without_a_loss_there_is_no_reason() -> None:
    assert "Why:" not in document(race_of(FASTER))


def test_more_right_pages_of_another_system_are_a_loss() -> None:
    seen = [("pagetier", 254), ("files", 256), ("LMCache", 200)]
    lines = [Observed(Observation("burst", name, "1", Served(right, 0, 512 - right))) for name, right in seen]
    lost = document(race_of(*lines)).split("## What pagetier loses")[1].split("## Trust")[0]
    assert "stored in a burst: 254 right pages; files 256." in lost and "comparisons" not in lost


def observed(failure: str, system: str, served: Served, waited: float, *calls: Call) -> Observed:
    return Observed(Observation(failure, system, "1", served, waited=waited, calls=list(calls)))


def test_a_shorter_wait_is_a_loss_only_if_as_many_pages_were_right() -> None:
    lines = [
        observed("disk_full", "pagetier", Served(254, 0, 2), 0.186),
        observed("disk_full", "vLLM native", Served(256), 0.118),
        observed("disk_full", "files", Served(64, 0, 192), 0.1),
        observed("server_stopped", "pagetier", Served(16), 1.0, Call("load", 0.2, 16), Call("store", 1.0, 0)),
        observed("server_stopped", "LMCache", Served(0, 0, 16), 9.0, Call("load", 0.1, 0), Call("store", 0.007, 0)),
    ]
    lost = document(race_of(*lines)).split("## What pagetier loses")[1].split("## Trust")[0]
    assert "is full: the longest call took 186 ms; vLLM native 118 ms (256 right)." in lost
    assert "store took 1,000 ms (0 pages); LMCache 7 ms (0 pages), its longest call 9,000 ms." in lost
    assert "files" not in lost and "load took" not in lost


def test_without_figures_the_report_speaks_of_no_ratio_and_names_the_contests_that_were_not_run() -> None:
    text = document(race_of(observed("burst", "pagetier", Served(1), 0.1)))
    assert "A ratio" not in text and "picture" not in text
    assert "- Is it cached?: this contest was not run." in text and "- Trust: this" not in text
    assert "A ratio is above 1" in document(race_of(SLOWER))


def test_each_contest_keeps_the_machine_date_and_load_of_its_own_run() -> None:
    race = race_of(SLOWER)
    later = msgspec.structs.replace(RUN, machine="another", began="2026-02-02 00:00", load=(7.0, 8.0))
    merge(race, "trust", [observed("burst", "pagetier", Served(1), 0.1)], later)
    text = document(race)
    assert text.index("2026-01-01 00:00") < text.index("a machine") < text.index("2026-02-02 00:00")
    assert "The load average over one minute was 7.0 at the beginning and 8.0 at the end" in text and "another" in text


def case_of(name: str, ours: float) -> Figures:
    return Figures("serving", name, "ms", "low", {"pagetier": [ours] * 6, "vLLM native": [1.0] * 6})


def test_a_goal_is_missed_if_one_case_is_behind_and_open_if_none_is_certain() -> None:
    goals = [
        document(race_of(case_of("first token of 260 tokens, from memory", one), case_of("x, from memory", other)))
        for one, other in ((0.5, 0.25), (0.5, 2.0), (0.5, 1.0))
    ]
    ends = [text.split("ahead of native at every length: ")[1].partition("\n")[0] for text in goals]
    assert ends == ["met in all 2 cases.", "**missed**: x, from memory 0.5 x.", "undecided: x, from memory 1 to 1 x."]


def test_a_table_of_pagetier_alone_has_no_column_of_a_rival() -> None:
    text = document(race_of(Figures("serving", "loads of the prefix", "times", "low", {"pagetier": [1.0]})))
    assert "| case | unit | pagetier |\n| -- | -- | -: |\n| loads of the prefix | times | 1 (1 to 1) |\n" in text


def test_wrong_pages_calls_without_an_answer_and_absent_systems_are_shown() -> None:
    seen = Observation("burst", "pagetier", "1", Served(3, 2, 1), waited=0.25)
    silent = Observation("server_stopped", "pagetier", "1", unanswered=1)
    text = document(race_of(Observed(seen), Observed(silent), Absent("disk", "LMCache", "not\ninstalled")))
    assert "3 right, **2 wrong**, 1 missed; 250 ms" in text
    assert "nothing asked; no answer" in text
    assert "- Disk: LMCache: not installed" in text


def test_results_are_read_as_they_were_saved_and_a_contest_replaces_its_own_lines(tmp_path: Path) -> None:
    race = race_of(SLOWER, Observed(Observation("burst", "files", "1")))
    early = Figures("lookup", FASTER.case, "x memcpy", "high", {"pagetier": [1.0]})
    merge(race, "lookup", [early, FASTER, Absent("lookup", "LMCache", "gone")], RUN)
    save(race, tmp_path / "race.json")
    again = read(tmp_path / "race.json")
    assert again == race
    assert [type(line) for line in again.lines] == [Observed, Figures, Absent]


def test_a_bar_is_as_long_as_its_value_on_a_logarithmic_axis() -> None:
    cases = [
        Figures("lookup", "a < b", "ms", "low", {"pagetier": [1.0] * 6, "files": [10.0] * 6, "LMCache": [100.0] * 6})
    ]
    picture = ElementTree.fromstring(bar_chart("Is it cached?", cases))
    bars = [float(one.get("width", "")) for one in picture.iter("{http://www.w3.org/2000/svg}rect") if one.get("x")]
    assert bars[0] == 0 and bars[2] == pytest.approx(2 * bars[1], rel=0.01)


def test_one_changed_byte_of_a_page_is_wrong() -> None:
    out = np.zeros((4, 4096), np.uint8)
    for number in range(3):
        fill_page(out[number], 7, number)
    assert judge(7, out, 3) == Served(right=3, missed=1)
    out[1, 4095] ^= 1
    assert judge(7, out, 3) == Served(right=2, wrong=1, missed=1)
    assert judge(8, out, 3) == Served(wrong=3, missed=1)


def test_prompts_differ_from_their_first_token_on() -> None:
    assert (tokens_of(1, 2, 16)[:16] != tokens_of(2, 2, 16)[:16]).any()
    assert (tokens_of(1, 2, 16)[:16] == tokens_of(1, 1, 16)).all()


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
