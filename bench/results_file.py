"""Result files of benchmarks that not every machine can run."""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from measure import Result


def run_command(description: str | None, path: Path, measure: Callable[[], dict[str, Any]]) -> None:
    """Runs the command line of a benchmark: prints the record as a table, or with --json prints it and writes it.

    Args:
        description: The help text.
        path: The results file.
        measure: Returns the record: `measured`, and then `device` and `results`, otherwise `reason`.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help=f"print one object, and write it to {path.name}")
    as_json = parser.parse_args().json
    record = measure()
    if as_json:
        save(record, path)
        print(json.dumps(record))
    else:
        show(record)


def row_of(result: Result) -> dict[str, Any]:
    """Returns a result for JSON. `met` is None if there is no goal."""
    met = result.goal.met(result.value) if result.goal.sign else None
    row: dict[str, Any] = msgspec.to_builtins(result)
    return row | {"goal": str(result.goal), "met": met}


def save(record: dict[str, Any], path: Path) -> None:
    """Writes a results file with today's date, unless nothing was measured and it has another machine's results."""
    if not record["measured"] and path.exists() and json.loads(path.read_text())["measured"]:
        return
    path.parent.mkdir(exist_ok=True)
    dated = {"date": datetime.datetime.now(datetime.UTC).date().isoformat()} | record
    path.write_text(json.dumps(dated, indent=1) + "\n")


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
