"""Alternating rounds: in each, every system runs the same work once, in a random order."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from race.contestants.cache import Cache, Sizes
from race.contestants.registry import MAKERS, reason_absent
from race.engine_process import Answer, EngineProcess
from race.results import Absent, Figures, Line

_CPU_CLOCK = 2  # with a process ID it makes the number of a clock, as clock_getcpuclockid() does


class Team(msgspec.Struct):
    """A system and its engines."""

    cache: Cache
    engines: list[EngineProcess]
    sizes: Sizes


class RoundError(Exception):
    """A system did not do in a round what was measured. The message says what happened."""


Values = dict[str, float]
"""By case the value of one round."""


def teams(
    contest: str, names: Sequence[str], sizes: Sizes, engines: int, folder: Path, stack: ExitStack
) -> Iterator[tuple[str, Team] | Line]:
    """Starts systems with some engines each. Yields them, or why they are absent."""
    for name in names:
        if reason := reason_absent(name):
            yield Absent(contest, name, reason)
            continue
        try:
            cache = stack.enter_context(MAKERS[name](sizes, folder))
            started = [stack.enter_context(EngineProcess(cache.opener(), sizes)) for _ in range(engines)]
        except (Exception, SystemExit) as error:  # noqa: BLE001 -- whatever it is, the others race
            yield Absent(contest, name, f"cannot start: {error}"[:600])
            continue
        if failed := [engine.opened.error for engine in started if engine.opened.error]:
            yield Absent(contest, name, f"an engine cannot open it: {failed[0]}")
            continue
        yield name, Team(cache, started, sizes)


def run_rounds(
    contest: str,
    running: Mapping[str, Team],
    rounds: int,
    play: Callable[[Team, int], Values],
    units: Mapping[str, tuple[str, str]],
) -> Iterator[Line]:
    """Yields the figures of all cases.

    Args:
        contest: The contest.
        running: The systems.
        rounds: The number of rounds; another one before them is a warm-up.
        play: Runs one round of one system, and returns a value for each case.
        units: By case its unit, and whether "low" or "high" is better.
    """
    order, measured, out = random.Random(1), dict[str, dict[str, list[float]]](), dict[str, str]()
    for number in range(rounds + 1):
        for name, team in order.sample(list(running.items()), len(running)):
            if name in out:
                continue
            try:
                values = play(team, number)
            except RoundError as error:
                out[name] = f"round {number}: {error}"
                continue
            for case, value in values.items() if number else ():
                measured.setdefault(case, {}).setdefault(name, []).append(value)
    for case, rounds_of in measured.items():
        unit, best = next(units[key] for key in units if key in case)
        yield Figures(contest, case, unit, best, rounds_of)
    for name, reason in out.items():
        yield Absent(contest, name, reason)


def together(engines: Sequence[EngineProcess], what: str, *arguments: object, timeout: float = 120.0) -> list[Answer]:
    """Lets engines do the same at the same time.

    Raises:
        RoundError: An engine got an error or no answer.
    """
    return each(engines, what, [arguments] * len(engines), timeout)


def each(
    engines: Sequence[EngineProcess], what: str, arguments: Sequence[Sequence[object]], timeout: float = 120.0
) -> list[Answer]:
    """Lets engines do the same at the same time, each with its own arguments.

    Raises:
        RoundError: An engine got an error or no answer.
    """
    for engine, own in zip(engines, arguments, strict=True):
        engine.send(what, *own)
    answers = [engine.receive(timeout) for engine in engines]
    for answer in answers:
        if answer.error or not answer.answered:
            raise RoundError(f"{what}: {answer.error or 'no answer'}")
    return answers


def stored(team: Team, engine: EngineProcess, prompt: int, pages: int) -> Answer:
    """Stores a prompt. A system that evicts in the background may refuse it at first; only the last try counts.

    Raises:
        RoundError: It was never stored as a whole.
    """
    answer = Answer(0, 0.0)
    for _ in range(30):
        (answer,) = together([engine], "store", prompt, pages)
        if answer.value == pages:
            return answer
        time.sleep(0.2)
    raise RoundError(f"{answer.value} of {pages} pages of a prompt were stored, also after 30 tries")


def cpu_of(pids: Sequence[int]) -> float:
    """Returns the CPU seconds of processes and their children."""
    processes = [*pids, *(child for pid in pids for child in _children(pid))]
    return sum(time.clock_gettime(~pid << 3 | _CPU_CLOCK) for pid in processes if Path(f"/proc/{pid}").exists())


def _children(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for children in lists for child in children.read_text().split()]
