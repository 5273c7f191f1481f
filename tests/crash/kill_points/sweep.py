"""A sweep: one operation, again and again, with a death or a standstill at one point after another."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from kill_points.cases import Case, crossings, run
from kill_points.control import Action, Control
from kill_points.failpoint_table import table
from kill_points.fork_client import Nursery
from kill_points.operation import Operation
from kill_points.scene import Scene

EVERYTHING: Final = os.environ.get("SWEEP") == "all"
"""Each operation at all points that it crosses; else each point once."""
_TRIES: Final = 3

log = logging.getLogger("sweep")


class Stage(msgspec.Struct, frozen=True):
    """Where sweeps are played: processes that are ready to be born, and the file of their points."""

    nursery: Nursery
    control: Control


class Swept(msgspec.Struct, frozen=True):
    """What came of it.

    uncrossed: cases that had to be met and were not; by_chance: cases that another operation meets for certain, and
    this one did not again. back_s: the longest time until the memory of the dead was in use again.
    """

    cases: int
    uncrossed: list[str]
    by_chance: list[str]
    back_s: float


@contextmanager
def stage(folder: Path, mutant: Path | None = None) -> Iterator[Stage]:
    """For as many sweeps as one likes, one after another; nobody is left at the end."""
    with Control(folder / "points") as control, Nursery(control.path, folder / "log", mutant) as nursery:
        yield Stage(nursery, control)
        assert nursery.alone(5.0), "a process was left"


def sweep(on: Stage, kind: type[Operation], action: Action, folder: Path) -> Swept:
    """Raises AssertionError with the case in which a promise is broken."""
    with Scene(on.nursery, on.control, folder, kind.flags(folder)) as scene:
        cases = _cases(scene, kind, action)
        ended = [_run(scene, kind, case) for case in cases]
    missed = [case for case, back_s in zip(cases, ended, strict=True) if back_s is None]
    uncrossed = [str(case) for case in missed if _must_be_met(kind, case)]
    by_chance = [str(case) for case in missed if not _must_be_met(kind, case)]
    back_s = max((back_s for back_s in ended if back_s is not None), default=0.0)
    log.warning("%s: %d cases, memory back after %.3f s at most", kind.__name__, len(cases), back_s)
    return Swept(len(cases), uncrossed, by_chance, back_s)


def _cases(scene: Scene, kind: type[Operation], action: Action) -> Sequence[Case]:
    cases = {Case(role, point, action) for role, points in table()[kind.__name__].items() for point in points}
    if EVERYTHING:
        found = crossings(scene, kind).items()
        cases |= {Case(role, point, action) for role, points in found for point in points}
    return sorted(cases, key=str)


def _must_be_met(kind: type[Operation], case: Case) -> bool:
    """What an operation crosses once may be a chance of that run; each point has one that crosses it for certain."""
    return case.point in table()[kind.__name__].get(case.role, ())


def _run(scene: Scene, kind: type[Operation], case: Case) -> float | None:
    """Seconds until memory was back; None where the point was not crossed, however often it was tried."""
    for _ in range(_TRIES):
        try:
            ended = run(scene, kind, case)
        except Exception as error:
            error.add_note(f"{kind.__name__}: {case}")
            raise
        if ended.crossed:
            return ended.back_s
    return None
