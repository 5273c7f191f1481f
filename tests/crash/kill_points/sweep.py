"""Sweeps an operation: runs it once for each failpoint, and kills or stops a process there."""

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
from kill_points.fork_client import ForkClient
from kill_points.operation import Operation
from kill_points.scene import Scene

EVERYTHING: Final = os.environ.get("SWEEP") == "all"
"""With it, each operation is swept at all failpoints that it crosses; otherwise each failpoint is swept once."""
_TRIES: Final = 3

log = logging.getLogger("sweep")


class Stage(msgspec.Struct, frozen=True):
    """The fork server and the control file that sweeps share."""

    fork_client: ForkClient
    control: Control


class Swept(msgspec.Struct, frozen=True):
    """The result of a sweep.

    Attributes:
        cases: The number of cases.
        uncrossed: Cases whose failpoint had to be crossed and was not.
        by_chance: Cases whose failpoint was not crossed again, but which another operation is certain to cross.
        back_s: The longest time until the memory of a dead process was in use again, in seconds.
    """

    cases: int
    uncrossed: list[str]
    by_chance: list[str]
    back_s: float


@contextmanager
def stage(folder: Path, mutant: Path | None = None) -> Iterator[Stage]:
    """Yields a stage for any number of sweeps, one after another, and asserts at the end that no process is left."""
    with Control(folder / "points") as control, ForkClient(control.path, folder / "log", mutant) as fork_client:
        yield Stage(fork_client, control)
        assert fork_client.all_ended(5.0), "a process was left behind"


def sweep(on: Stage, kind: type[Operation], action: Action, folder: Path) -> Swept:
    """Runs all cases of an operation and returns the result. Raises AssertionError for a case that breaks a promise."""
    with Scene(on.fork_client, on.control, folder, kind.flags(folder)) as scene:
        cases = _cases(scene, kind, action)
        ended = [_run(scene, kind, case) for case in cases]
    missed = [case for case, back_s in zip(cases, ended, strict=True) if back_s is None]
    uncrossed = [str(case) for case in missed if _must_be_met(kind, case)]
    by_chance = [str(case) for case in missed if not _must_be_met(kind, case)]
    back_s = max((back_s for back_s in ended if back_s is not None), default=0.0)
    log.warning("%s: %d cases, memory was in use again after %.3f s at most", kind.__name__, len(cases), back_s)
    return Swept(len(cases), uncrossed, by_chance, back_s)


def _cases(scene: Scene, kind: type[Operation], action: Action) -> Sequence[Case]:
    cases = {Case(role, point, action) for role, points in table()[kind.__name__].items() for point in points}
    if EVERYTHING:
        found = crossings(scene, kind).items()
        cases |= {Case(role, point, action) for role, points in found for point in points}
    return sorted(cases, key=str)


def _must_be_met(kind: type[Operation], case: Case) -> bool:
    """Returns whether the case must be met: an operation may cross other failpoints by chance in one run only."""
    return case.point in table()[kind.__name__].get(case.role, ())


def _run(scene: Scene, kind: type[Operation], case: Case) -> float | None:
    """Returns the seconds until memory was in use again; None if no try crossed the failpoint."""
    for _ in range(_TRIES):
        try:
            ended = run(scene, kind, case)
        except Exception as error:
            error.add_note(f"{kind.__name__}: {case}")
            raise
        if ended.crossed:
            return ended.back_s
    return None
