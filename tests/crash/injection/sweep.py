"""Sweeps an operation: runs it once for each case, and checks the promises each time."""

from __future__ import annotations

import logging
import os
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pytest

from eventually import eventually
from injection.disk_cases import run_disk_case
from injection.forked_processes import Stage
from injection.injector import POINTS, Case, Met, Role, Site
from injection.operation import Operation
from injection.process_cases import end_process_case, run_process_case
from injection.scene import InjectionScene
from injection.verdicts import QUIET_S

SEED: Final = int(os.environ.setdefault("SWEEP_SEED", str(secrets.randbits(32))))
"""Draws the eviction policy of each sweep. The processes of pytest-xdist inherit it by the environment."""
EVERYTHING: Final = os.environ.get("SWEEP") == "all"
"""With it, an operation is swept at all failpoints that it meets, and its disk calls go wrong in all ways."""
POLICIES: Final = ("lru", "cadence")
_WAITS_S: Final = (QUIET_S, 1.0, 4.0)
"""How long each try waits for a failpoint after the operation: the disk worker follows late on a busy machine."""

log = logging.getLogger("sweep")


class Recorded(msgspec.Struct, frozen=True):
    """The sites that an operation meets when nothing is injected: failpoints by role, and how many calls."""

    points: dict[Role, set[str]]
    calls: Counter[Site]


class Swept(msgspec.Struct, frozen=True):
    """The result of a sweep.

    Attributes:
        cases: The number of its cases.
        missed: Those that were not met this time.
        policy: The eviction policy. With "cadence" a full arena may leave out pages, and evict none.
    """

    cases: int
    missed: list[Case]
    policy: str


def sweep(
    on: Stage,
    kind: type[Operation],
    folder: Path,
    flags: Sequence[str],
    choose: Callable[[InjectionScene], Sequence[Case]],
) -> Swept:
    """Runs the chosen cases of an operation with a policy that is drawn by SEED.

    Raises AssertionError for a case that breaks a promise.
    """
    policy = random.Random(f"{SEED} {kind.__name__}").choice(POLICIES)
    with InjectionScene(on, folder, (*kind.flags_in(folder), *flags, "--set", f"evict.policy={policy}")) as scene:
        cases = choose(scene)
        missed = [case for case in cases if not _met(scene, kind, case, policy)]
    log.warning(
        "%s: %d cases, %d not met, SWEEP_SEED=%d, evict.policy = %s",
        kind.__name__,
        len(cases),
        len(missed),
        SEED,
        policy,
    )
    return Swept(len(cases), missed, policy)


def _met(scene: InjectionScene, kind: type[Operation], case: Case, policy: str) -> bool:
    """Returns whether a try met the case. Failpoints are tried several times, calls vary too much for that."""
    try:
        if case.sites != POINTS:
            return run_disk_case(scene, kind, case)
        return any(run_process_case(scene, kind, case, wait) for wait in _WAITS_S)
    except Exception as error:
        error.add_note(f"{kind.__name__}: {case}; SWEEP_SEED={SEED}, evict.policy = {policy}")
        raise


def record(scene: InjectionScene, kind: type[Operation]) -> Recorded:
    """Runs an operation without an injection, and returns what it meets."""
    operation = kind.begun(scene)
    of_pid = {operation.pid(role): role for role in kind.roles if role not in kind.starts}
    scene.injector.forget()
    operation.act()
    assert eventually(operation.done), f"{kind.__name__} did not end: {scene.daemon.log.read_text()}"
    met = _met_until_rest(scene)
    if Role.ENGINE in kind.starts:
        of_pid[operation.pids_of_engines()[0]] = Role.ENGINE
    if Role.DAEMON in kind.starts:
        of_pid[scene.daemon.pid] = Role.DAEMON
    others = set(operation.pids_of_engines())
    points: dict[Role, set[str]] = {}
    for one in met:
        role = of_pid.get(one.pid, Role.TIER if one.pid not in others else None)
        if one.site is Site.FAILPOINT and role in kind.roles:
            points.setdefault(role, set()).add(one.name)
    end_process_case(scene, operation)
    calls: Counter[Site] = Counter()
    for one, times in met.items():
        calls[one.site] += times if one.site is not Site.FAILPOINT else 0
    return Recorded(points, calls)


def _met_until_rest(scene: InjectionScene) -> Counter[Met]:
    """Returns the sites that were met when the daemon's turns meet no other one."""
    met: Counter[Met] = Counter()
    while met.keys() != (met := scene.injector.met()).keys():
        if scene.daemon.lives:
            scene.turns.pass_by()
    return met


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints how many cases of the sweeps were met, and the names of those that were not, which no test checks."""
    swept = list(_swept(terminalreporter))
    missed = [case for _, cases in swept for case in cases]
    if swept:
        terminalreporter.section(f"sweeps, SWEEP_SEED={SEED}")
        met = sum(count for count, _ in swept) - len(missed)
        terminalreporter.write_line(f"{met} cases were met, {len(missed)} were not met this time:")
    for case in missed:
        terminalreporter.write_line(f"  {case}")


def _swept(reporter: pytest.TerminalReporter) -> Iterator[tuple[int, list[str]]]:
    for report in reporter.getreports("passed") + reporter.getreports("failed"):
        yield from (value for name, value in report.user_properties if name == "swept")
