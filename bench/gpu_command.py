"""The command line that the benchmarks of a GPU share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable

import torch

from measure import Result, print_lines, print_table


def main(title: str | None, measure: Callable[[], Iterable[Result]], rehearse: Callable[[], Iterable[Result]]) -> None:
    """Runs a benchmark as a command: prints a table, or with --json an object a line.

    Without a GPU it prints that nothing was measured, and why.

    Args:
        title: The help text.
        measure: Measures on the first GPU.
        rehearse: Runs the same code on the CPU with little work. Its numbers mean nothing.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", action="store_true", help="one object per line")
    parser.add_argument("--rehearsal", action="store_true", help="run on the CPU with little work")
    options = parser.parse_args()
    if not options.rehearsal and not torch.cuda.is_available():
        reason = "no GPU on this machine"
        print(json.dumps({"skipped": reason}) if options.json else f"not measured: {reason}")
        return
    results = rehearse() if options.rehearsal else measure()
    if options.json:
        print_lines(results)
    else:
        print_table(f"{(title or '').partition(chr(10))[0]}\n{device_name()}", results)


def device_name() -> str:
    """Returns the name of the first GPU, or that there is none."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
