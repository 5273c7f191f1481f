"""The results of a race: what each contest prints, a JSON object a line, and the file that keeps them."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import msgspec

from race.contests.trust.observation import Observation


class Form(Enum):
    """The short form of the race, or the whole."""

    QUICK = "quick"
    WHOLE = "whole"


class Figures(msgspec.Struct, tag="figures"):
    """One measurement of several systems in alternating rounds.

    Attributes:
        contest: The contest.
        case: What was measured.
        unit: The unit of the values.
        best: Which values are better, "low" or "high".
        rounds: By system the value of each round; the same places of two lists are of the same round.
    """

    contest: str
    case: str
    unit: str
    best: str
    rounds: dict[str, list[float]]


class Observed(msgspec.Struct, tag="observed"):
    """The facts about one failure."""

    observation: Observation


class Absent(msgspec.Struct, tag="absent"):
    """A system that did not take part in a contest, or in a part of it, and the reason."""

    contest: str
    system: str
    reason: str


Line = Figures | Observed | Absent


class Run(msgspec.Struct, frozen=True):
    """Where and when one contest was run, and how.

    Attributes:
        machine: The machine.
        began: When the contest began, in UTC.
        form: The short form or the whole.
        load: The load average over one minute before and after.
        versions: By system its version.
        seconds: How long the contest took.
    """

    machine: str
    began: str
    form: Form
    load: tuple[float, float]
    versions: dict[str, str]
    seconds: float


class Race(msgspec.Struct):
    """All results, and by contest how they were measured: contests may have been run at different times."""

    lines: list[Line] = msgspec.field(default_factory=list)
    runs: dict[str, Run] = msgspec.field(default_factory=dict)


def save(race: Race, path: Path) -> None:
    """Writes the file; a reader sees the old or the new one."""
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(race), indent=1) + b"\n")
    partial.replace(path)


def read(path: Path) -> Race:
    """Reads the file."""
    return msgspec.json.decode(path.read_bytes(), type=Race)


def merge(race: Race, contest: str, lines: list[Line], run: Run) -> None:
    """Replaces the results of a contest. Of a case that was printed after each round, the last line counts."""
    last = {line.case: line for line in lines if isinstance(line, Figures)}
    kept = [line for line in lines if not isinstance(line, Figures) or line is last[line.case]]
    race.lines = [line for line in race.lines if contest_of(line) != contest] + kept
    race.runs[contest] = run


def contest_of(line: Line) -> str:
    """Returns the contest to which a line belongs."""
    return "trust" if isinstance(line, Observed) else line.contest
