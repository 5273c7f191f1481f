"""What every benchmark here shares: a result with its goal and what it was compared with, and how it is printed."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table


class Goal(msgspec.Struct, frozen=True):
    """A bound on a value. An empty sign: reported only."""

    sign: str
    bound: float

    def met(self, value: float) -> bool:
        """Whether the value keeps the bound."""
        return {"<=": value <= self.bound, ">=": value >= self.bound}.get(self.sign, True)

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}" if self.sign else "reported"


REPORTED = Goal("", 0)


class Result(msgspec.Struct, frozen=True):
    """One number. against: what it was compared with, measured in the same run."""

    name: str
    value: float
    unit: str
    against: str
    goal: Goal = REPORTED


def at_most(bound: float) -> Goal:
    """The value should not be above."""
    return Goal("<=", bound)


def at_least(bound: float) -> Goal:
    """The value should not be below."""
    return Goal(">=", bound)


class Unit(Enum):
    """Seconds times this."""

    NS = 1e9
    US = 1e6
    MS = 1e3


def time_of(action: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def median_times(rounds: int, *actions: Callable[[], object]) -> list[float]:
    """Median seconds of each action, taken in turn, so that a change of the machine's speed meets all alike."""
    times: list[list[float]] = [[] for _ in actions]
    for _ in range(rounds):
        for action, taken in zip(actions, times, strict=True):
            taken.append(time_of(action))
    return [statistics.median(taken) for taken in times]


def machine() -> str:
    """The processor and what there is of it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, Python {sys.version.split()[0]}"


def main(title: str, measure: Callable[[], Iterable[Result]]) -> None:
    """Runs a benchmark as a command: a table, or with --json an object a line."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", action="store_true", help="one object per line")
    if parser.parse_args().json:
        for result in measure():
            print(json.dumps(msgspec.to_builtins(result) | {"goal": str(result.goal)}), flush=True)
    else:
        _print_table(title, measure())


def _print_table(title: str, results: Iterable[Result]) -> None:
    table = Table("name", "value", "unit", "goal", "", "against", title=f"{title}\n{machine()}")
    console = Console()
    with console.status("measuring"):
        for result in results:
            verdict = "" if not result.goal.sign else "met" if result.goal.met(result.value) else "MISSED"
            table.add_row(result.name, f"{result.value:.4g}", result.unit, str(result.goal), verdict, result.against)
    console.print(table)
