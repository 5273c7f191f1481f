"""Tests that the page and pictures of the race are those of its results, and that nothing in them is hidden."""

from __future__ import annotations

import shutil
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

from race.report.bar_chart import bar_chart
from race.report.write import write_report
from race.results import Figures, read

ROOT = Path(__file__).parents[2]
PICTURES = sorted((ROOT / "docs").glob("race-*.svg"))
CHARACTER = 7.5
"""An upper bound of the mean width of a character at this size, in units of the picture."""

Box = tuple[float, float, float, float]


def figures(case: str, unit: str, best: str, *systems: str) -> Figures:
    return Figures("lookup", case, unit, best, {name: [2.0, 3.0, 4.0] for name in systems})


def words(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture) if element.tag.endswith("text")]


def box_of(element: ElementTree.Element) -> Box:
    """Returns left, top, right and bottom of a bar or a text."""
    x, y = float(element.get("x", 0)), float(element.get("y", 0))
    if element.tag.endswith("rect"):
        return x, y, x + float(element.get("width", 0)), y + float(element.get("height", 0))
    width = CHARACTER * len(element.text or "")
    left = x - width * {"end": 1.0, "middle": 0.5}.get(element.get("text-anchor", ""), 0.0)
    return left, y - 10, left + width, y + 2


def overlaps(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def hidden(picture: str) -> list[tuple[Box, Box]]:
    """Returns the pairs of texts and bars of a picture that overlap."""
    parts = [each for each in ElementTree.fromstring(picture) if each.tag.endswith(("text", "rect")) and each.get("x")]
    return [pair for pair in combinations(map(box_of, parts), 2) if overlaps(*pair)]


def test_the_page_and_the_pictures_are_those_of_the_results(tmp_path: Path) -> None:
    write_report(read(ROOT / "bench/results/race.json"), tmp_path)
    shutil.copy(ROOT / ".mdformat.toml", tmp_path)
    subprocess.run([sys.executable, "-m", "mdformat", str(tmp_path / "race.md")], check=True)
    made = {path.name: path.read_text() for path in tmp_path.glob("race*")}
    assert made == {path.name: path.read_text() for path in (ROOT / "docs/race.md", *PICTURES)}


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_no_text_is_over_a_bar_or_another_text(path: Path) -> None:
    assert hidden(path.read_text()) == []


def test_a_text_over_a_bar_is_found() -> None:
    text, bar = '<text x="10" y="12">name</text>', '<rect x="30" y="0" width="50" height="12"/>'
    assert len(hidden(f"<svg>{text}{bar}</svg>")) == 1


def test_each_unit_has_an_axis_that_says_which_bars_are_better() -> None:
    cases = [figures("a", "ms", "low", "files"), figures("b", "%", "high", "files"), figures("c", "ms", "low", "files")]
    found = words(bar_chart("title", cases))
    assert found.count("ms, shorter is better") == 1 and found.count("%, longer is better") == 1
    assert found.index("c") < found.index("%, longer is better") < found.index("b")


def bars_of(*values: float) -> list[float]:
    """Returns the lengths of the bars of values that share an axis."""
    case = Figures("lookup", "a", "ms", "low", {f"system {at}": [value] * 3 for at, value in enumerate(values)})
    bars = [each for each in ElementTree.fromstring(bar_chart("title", [case])) if each.tag.endswith("rect")]
    return [float(bar.get("width", 0)) for bar in bars if bar.get("x")]


@pytest.mark.parametrize("pair", [(2089.0, 2693.0), (1.0, 1.0), (0.08, 3.2), (19.99, 104.2), (9.6, 88.7)])
def test_bars_are_as_long_as_their_values_are_large(pair: tuple[float, float]) -> None:
    shorter, longer = bars_of(*pair)
    assert longer / shorter == pytest.approx(pair[1] / pair[0], rel=0.02)
    assert longer > 300


def test_an_axis_over_several_powers_of_ten_says_that_it_is_logarithmic() -> None:
    case = Figures("lookup", "a", "ms", "low", {"files": [0.5] * 3, "vLLM": [2294.0] * 3})
    assert "ms, shorter is better; logarithmic" in words(bar_chart("title", [case]))


def test_systems_have_the_same_order_in_each_case() -> None:
    picture = bar_chart("title", [figures("a", "ms", "low", "vLLM", "another", "files", "LMCache", "pagetier")])
    names = ("pagetier", "LMCache", "files", "vLLM", "another")
    assert [word for word in words(picture) if word in names] == list(names)
