"""Measures two processes that match the same prompt at the same time, on a machine that may be busy.

A busy machine seldom runs both processes at once, so that the rate of matches says nothing. Here each notes when its
short batches of matches began and ended (`shared_matches.c`). A batch counts as beside the other process if that one
ran all the while, and as alone if it paused. The medians of both are those of a quiet machine.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from measure import REPORTED, Goal, Result, at_least, machine
from pagetier.shm import _core
from results_file import row_of, run_command

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "shared-matches.json"
RUNS = 10
TRIES = 20  # of a run: on a very busy machine the processes may never run at the same time
ROUNDS = 100  # of 10 ms
PAGES = (8, 512)
WORKS = {"": 1000, "_without_work": 0}  # ns after each match: Python needs about a microsecond
WHAT = ("other", "same", "held")
"""What the processes match: a prompt each, the same one, or the same one that each has already pinned for a request."""
_BATCH_PAGES = 512
_LONGEST_NS = 200_000  # a batch that takes longer was interrupted: batches take 10 to 100 us, time slices a millisecond
_GAP_NS = 1000

Batches = npt.NDArray[np.uint64]
"""Rows of the begin and the end of a batch in ns, in order."""


class Rates(NamedTuple):
    """The medians of a run: ns of a match while the other process pauses, and of each process beside the other."""

    alone: float
    beside: tuple[float, float]

    @property
    def ratio(self) -> float:
        """The matches of two processes over those of one."""
        return sum(self.alone / each for each in self.beside)


def build(folder: Path) -> Path:
    """Returns the program that matches."""
    program, core = folder / "shared_matches", Path(_core.__file__).parent / "core"
    options = ("-std=gnu11", "-O2", f"-I{core}", "-D_GNU_SOURCE", "-pthread")
    subprocess.run(["gcc", *options, HERE / "shared_matches.c", "-o", program, "-lm"], check=True)
    return program


def batches(program: Path, pages: int, what: str, rounds: int, work_ns: int) -> list[Batches]:
    """Returns the batches of both processes; `what` is one of WHAT."""
    command = (program, str(pages), what, str(rounds), str(work_ns))
    words = np.frombuffer(subprocess.run(command, check=True, capture_output=True).stdout, np.uint64)
    first = 1 + 2 * int(words[0])
    return [words[1:first].reshape(-1, 2), words[first + 1 :].reshape(-1, 2)]


def _times(rows: Batches) -> Batches:
    times: Batches = rows[:, 1] - rows[:, 0]
    return times


def beside(mine: Batches, other: Batches) -> Batches:
    """Returns those of my batches while which the other process ran without a break."""
    interrupted = _times(other) > _LONGEST_NS
    interrupted[1:] |= other[1:, 0] - other[:-1, 1] > _GAP_NS
    breaks = np.cumsum(interrupted)
    first = np.searchsorted(other[:, 0], mine[:, 0], "right") - 1
    last = np.minimum(np.searchsorted(other[:, 1], mine[:, 1], "left"), len(other) - 1)
    within = (first >= 0) & (other[last, 1] >= mine[:, 1])
    found: Batches = mine[within & (breaks[first] == breaks[last]) & ~interrupted[first]]
    return found


def alone(mine: Batches, other: Batches) -> Batches:
    """Returns those of my batches while which the other process paused."""
    following = np.searchsorted(other[:, 1], mine[:, 0], "right")
    none = following == len(other)
    found: Batches = mine[none | (other[np.minimum(following, len(other) - 1), 0] >= mine[:, 1])]
    return found


def rates(found: Sequence[Batches], pages: int) -> Rates:
    """Returns the medians of a run. Raises ValueError if the machine never ran both processes at once."""
    one, other = found
    parts = [alone(one, other), beside(one, other), beside(other, one)]
    if not all(map(len, parts)):
        raise ValueError("the processes never ran at the same time")
    matches = -(-_BATCH_PAGES // pages)
    by_itself, *both = (float(np.median(_times(part))) / matches for part in parts)
    return Rates(by_itself, (both[0], both[1]))


def run(program: Path, pages: int, what: str, work_ns: int) -> Rates:
    """Returns the medians of the first run in which both processes ran at once. Raises ValueError after TRIES runs."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(ValueError):
            return rates(batches(program, pages, what, ROUNDS, work_ns), pages)
    return rates(batches(program, pages, what, ROUNDS, work_ns), pages)


def _result(name: str, runs: Sequence[Rates], goal: Goal) -> Result:
    middle = sorted(runs, key=lambda each: each.ratio)[len(runs) // 2]
    most = max(each.ratio for each in runs)
    against = f"{middle.alone:.0f} ns alone, {statistics.mean(middle.beside):.0f} ns beside; at most {most:.2f} x"
    return Result(name, min(each.ratio for each in runs), "x", against, goal)


def _prompts(program: Path) -> Iterator[Result]:
    for pages, what, (end, work_ns) in itertools.product(PAGES, WHAT, WORKS.items()):
        runs = [run(program, pages, what, work_ns) for _ in range(RUNS)]
        name = f"match_{pages}_{what}_2_processes_over_1{end}"
        goal = at_least(1.7) if work_ns else REPORTED
        yield _result(name, runs, goal)


def measure() -> dict[str, Any]:
    """Measures all cases. A value is the least of RUNS runs."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [row_of(one) for one in _prompts(build(Path(folder)))]
    return {"measured": True, "device": f"{machine()}, load {os.getloadavg()[1]:.0f}", "results": rows}


if __name__ == "__main__":
    run_command(__doc__, RESULTS, measure)
