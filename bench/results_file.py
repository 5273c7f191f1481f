"""Result files of benchmarks that not every machine can run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from measure import Result


def row_of(result: Result) -> dict[str, Any]:
    """Returns a result for JSON. `met` is None if there is no goal."""
    met = result.goal.met(result.value) if result.goal.sign else None
    row: dict[str, Any] = msgspec.to_builtins(result)
    return row | {"goal": str(result.goal), "met": met}


def save(record: dict[str, Any], path: Path) -> None:
    """Writes a results file, unless nothing was measured here and the file has results of another machine."""
    if not record["measured"] and path.exists() and json.loads(path.read_text())["measured"]:
        return
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def show(record: dict[str, Any]) -> None:
    """Prints the results as a table."""
    if not record["measured"]:
        Console().print(f"not measured: {record['reason']}")
        return
    table = Table("name", "value", "unit", "goal", "", "against", title=record["device"])
    for row in record["results"]:
        verdict = {None: "", True: "met", False: "MISSED"}[row["met"]]
        table.add_row(row["name"], f"{row['value']:.4g}", row["unit"], row["goal"], verdict, row["against"])
    Console().print(table)
