"""Writes the report and its pictures."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from race.report.bar_chart import bar_chart
from race.report.markdown import document
from race.report.titles import TITLES
from race.results import Figures, Race


def write_report(race: Race, folder: Path) -> None:
    """Writes race.md and a picture for each contest with figures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "race.md").write_text(document(race))
    figures = sorted((line for line in race.lines if isinstance(line, Figures)), key=lambda one: one.contest)
    for contest, cases in groupby(figures, key=lambda one: one.contest):
        (folder / f"race-{contest}.svg").write_text(bar_chart(TITLES[contest], list(cases)))
