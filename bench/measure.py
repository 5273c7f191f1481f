"""The parts that all benchmarks share: results with a goal and a comparison, timing, and printing."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from pagetier.daemon.host.host import Host


class Goal(msgspec.Struct, frozen=True):
    """A bound on a value. An empty sign means that the value is only reported."""

    sign: str
    bound: float

    def met(self, value: float) -> bool:
        """Returns whether the value meets the bound."""
        return {"<=": value <= self.bound, ">=": value >= self.bound}.get(self.sign, True)

    def verdict(self, value: float) -> str:
        """Returns "goal met" or by how much the value misses the bound; "" if there is no bound."""
        if not self.sign:
            return ""
        return "goal met" if self.met(value) else f"goal missed by {abs(value - self.bound):.3g}"

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}" if self.sign else "reported"


REPORTED = Goal("", 0)
_HUGE = ("never", "advise")


class Result(msgspec.Struct, frozen=True):
    """One measured number. `against` says what it was compared with in the same run."""

    name: str
    value: float
    unit: str
    against: str
    goal: Goal = REPORTED


def at_most(bound: float) -> Goal:
    """Returns the goal that a value is at most `bound`."""
    return Goal("<=", bound)


def at_least(bound: float) -> Goal:
    """Returns the goal that a value is at least `bound`."""
    return Goal(">=", bound)


class Unit(Enum):
    """The factor from seconds to this unit."""

    NS = 1e9
    US = 1e6
    MS = 1e3


def time_of(action: Callable[[], object]) -> float:
    """Returns the seconds that one call takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def median_times(rounds: int, *actions: Callable[[], object]) -> list[float]:
    """Returns the median seconds of each action. They run in turn, so that a change of speed affects all alike."""
    times: list[list[float]] = [[] for _ in actions]
    for _ in range(rounds):
        for action, taken in zip(actions, times, strict=True):
            taken.append(time_of(action))
    return [statistics.median(taken) for taken in times]


def machine() -> str:
    """Describes this machine's processor, memory and Python."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores, python = len(os.sched_getaffinity(0)), sys.version.split()[0]
    return f"{model}, {cores} cores, {memory:.0f} GiB, Python {python}, /dev/shm with huge={mounted()}"


def mounted() -> str:
    """Returns the option `huge` with which /dev/shm is mounted."""
    return Host().huge_pages().mount


def main(title: str, measure: Callable[[], Iterable[Result]]) -> None:
    """Runs a benchmark as a command: prints a table, or with --json an object a line."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", action="store_true", help="one object per line")
    parser.add_argument("--both", action="store_true", help="run without and with huge pages, as root")
    given = parser.parse_args()
    if given.both:
        sys.exit(_with_and_without_huge_pages([argument for argument in sys.argv if argument != "--both"]))
    if given.json:
        print_lines(measure())
    else:
        print_table(title, measure())


def _with_and_without_huge_pages(arguments: list[str]) -> int:
    """Runs a benchmark twice, in mount namespaces. Needs root. Returns the worse exit code."""
    commands = [with_shm(f"huge={huge}", sys.executable, *arguments) for huge in _HUGE]
    return max(subprocess.run(command, check=False).returncode for command in commands)


def with_shm(options: str, *command: str) -> list[str]:
    """Returns a command that runs `command` with a /dev/shm of its own, mounted with these options."""
    mount = f'mount -t tmpfs -o size=90%,{options} tmpfs /dev/shm && exec "$0" "$@"'
    return ["unshare", "--mount", "sh", "-c", mount, *command]


def print_lines(results: Iterable[Result]) -> None:
    """Prints one JSON object a line, each when it has been measured."""
    for result in results:
        rest = {"goal": str(result.goal), "verdict": result.goal.verdict(result.value), "shm": f"huge={mounted()}"}
        print(json.dumps(msgspec.to_builtins(result) | rest), flush=True)


def print_table(title: str, results: Iterable[Result]) -> None:
    """Prints the results as a table when all of them are measured."""
    table = Table("name", "value", "unit", "goal", "", "against", title=f"{title}\n{machine()}")
    console = Console()
    with console.status("measuring"):
        for result in results:
            verdict = "" if not result.goal.sign else "met" if result.goal.met(result.value) else "MISSED"
            table.add_row(result.name, f"{result.value:.4g}", result.unit, str(result.goal), verdict, result.against)
    console.print(table)
