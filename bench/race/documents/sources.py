"""Reads the results files, and the numbers that the documentation takes from them."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import msgspec

from race.contestants.registry import PAGETIER
from race.report.cells import number
from race.results import Figures, Race, read

FOLDER = Path(__file__).parents[2] / "results"
GPU = "nvidia-h200/2026-11-27T185512.jsonl"
FIRST_GPU = "nvidia-h200/2026-11-27T181903.jsonl"
GRIDS = "nvidia-h200/grids-2026-11-27.jsonl"
"""The runs of `make gpu`, the second one first, and the trial of launches."""


class Row(msgspec.Struct, frozen=True):
    """What was measured.

    Attributes:
        what: What it is.
        unit: The unit of the values.
        values: The values of the columns; None where a column has none.
        goal: The goal, in words.
        rates: GB/s for each value.
    """

    what: str
    unit: str
    values: list[float | None]
    goal: str = ""
    rates: list[float] = []

    def cell(self, column: int) -> str:
        """Returns the value of a column for a table."""
        value = self.values[column]
        if value is None:
            return ""
        return f"{value:g} {self.unit}" + (f" ({self.rates[column]:g} GB/s)" if self.rates else "")


class Table(msgspec.Struct, frozen=True):
    """The output of one program.

    Attributes:
        program: The program.
        date: The day of the run.
        machine: The machine.
        columns: What the values of a row are.
        rows: The rows.
    """

    program: str
    date: str
    machine: str
    columns: list[str]
    rows: list[Row]

    def row(self, begin: str) -> Row:
        """Returns the row whose name begins with these words."""
        return next(row for row in self.rows if row.what.startswith(begin))


class Sources:
    """All results files.

    Args:
        folder: The folder of the files.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self.race: Race = read(folder / "race.json")
        documented = json.loads((folder / "from-documents.json").read_text())
        self.tables = msgspec.convert(documented["tables"], dict[str, Table])

    def record(self, name: str) -> dict[str, Any]:
        """Returns a results file that has "date", "device" and "results"."""
        record: dict[str, Any] = json.loads((self._folder / f"{name}.json").read_text())
        return record

    def gpu(self, name: str, run: str = GPU) -> float:
        """Returns a value of a run on a GPU, of the second one if no other is named."""
        return float(self.gpu_line(name, run)["value"])

    def gpu_line(self, name: str, run: str) -> dict[str, Any]:
        """Returns a result of a run on a GPU."""
        lines = map(json.loads, (self._folder / run).read_text().splitlines())
        return next(line for line in lines if line.get("name") == name)

    def launch(self, grid: list[int]) -> dict[str, float]:
        """Returns what a shape of launches costs beside a store: GB/s, and per cent of decoding and of a product."""
        lines = map(json.loads, (self._folder / GRIDS).read_text().splitlines())
        return next(line for line in lines if line.get("grid") == grid)

    def figures(self, contest: str, case: str) -> Figures:
        """Returns a case of the race."""
        found = (line for line in self.race.lines if isinstance(line, Figures))
        return next(line for line in found if (line.contest, line.case) == (contest, case))

    def median(self, contest: str, case: str, system: str = PAGETIER) -> str:
        """Returns the median of a system with its unit."""
        figures = self.figures(contest, case)
        return f"{number(statistics.median(figures.rounds[system]))} {figures.unit.removesuffix(' memcpy')}"

    def race_caption(self) -> str:
        """Returns the machine and the day of the race."""
        run = self.race.runs["serving"]
        return f"{run.machine}; {run.began[:10]}"
