"""Kills or stops a process at every failpoint, in each role: others continue, nothing is lost, memory is reused.

Bugs in the core are found, and a release build is the same as code without failpoints.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from injection.failpoint_table import OPERATIONS, certain, points_in_sources, process_cases
from injection.forked_processes import Stage, stage
from injection.injector import POINTS, Action, Case, Injector, Role
from injection.instrumented_build import HERE, ROOT, environment
from injection.memory_operations import Load, Store, StoreByRanks, StorePart
from injection.operation import Operation
from injection.process_cases import run_process_case
from injection.scene import InjectionScene
from injection.sweep import sweep
from pagetier.shm.failpoints import point

# On a busy machine the other ranks must have reached the same place before the dead one is reaped or a page expires.
_SLOW = ("--constant", "store.quarantine=0.5", "--constant", "store.reservation_timeout=12")
MISTAKES = [
    (HERE / "mutants" / "pins-of-the-dead-stay.patch", Load, "match.stamped", "pinned by slots that are not taken"),
    (HERE / "mutants" / "parts-of-the-dead-stay.patch", Store, "copy.piece", "was not released|which is not taken"),
    (HERE / "mutants" / "finished-parts-of-the-dead-stay.patch", StorePart, "part.gone", "was not released"),
    (HERE / "mutants" / "one-part-is-enough.patch", StoreByRanks, "copy.piece", "a page has wrong content"),
]


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("sweep")) as made:
        yield made


@pytest.mark.parametrize("action", [Action.DIE, Action.STOP], ids=["kill", "stop"])
@pytest.mark.parametrize("kind", OPERATIONS)
def test_a_death_or_stop_at_any_failpoint_breaks_no_promise(
    on: Stage, kind: type[Operation], action: Action, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    swept = sweep(on, kind, tmp_path, (), lambda scene: process_cases(scene, kind, action))
    record_property("swept", [swept.cases, [f"{kind.__name__}: {case}" for case in swept.missed]])
    record_property("counted", {f"failpoints, {action.name.lower()}, {swept.policy}": swept.cases})
    assert swept.policy == "cadence" or not certain(kind, action).intersection(swept.missed)


@pytest.mark.parametrize(("mutant", "kind", "point", "what"), MISTAKES, ids=[one[0].stem for one in MISTAKES])
def test_a_sweep_finds_bugs_in_the_core(
    mutant: Path, kind: type[Operation], point: str, what: str, tmp_path: Path
) -> None:
    with (
        stage(tmp_path, mutant) as on,
        pytest.raises(AssertionError, match=what),
        InjectionScene(on, tmp_path, (*kind.flags, *_SLOW)) as scene,
    ):
        run_process_case(scene, kind, Case(Action.DIE, POINTS, point, role=Role.ENGINE))


def _preprocessed(folder: Path) -> str:
    include = sysconfig.get_paths()["include"]
    command = ["cc", "-E", "-P", "-DPy_LIMITED_API=0x030B0000", f"-I{include}", "shm/_core.c"]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def test_a_core_without_failpoints_is_otherwise_the_same(tmp_path: Path) -> None:
    """Compares token by token without `((void)0);`, so that a release is the same as code without failpoints."""
    for path in (ROOT / "shm").rglob("*.[ch]"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(re.sub(r'^[ \t]*PT_POINT\("[\w.]+"\);\n', "", path.read_text(), flags=re.MULTILINE))
    assert len(points_in_sources()) > 200
    assert "".join(_preprocessed(ROOT).replace("((void)0);", "").split()) == "".join(_preprocessed(tmp_path).split())


def test_a_failpoint_in_python_costs_no_step_but_its_call() -> None:
    steps: list[str] = []

    sys.setprofile(lambda _frame, event, _argument: steps.append(event))
    point("client.attached")
    sys.setprofile(None)
    assert steps[:2] == ["call", "return"] and not point.__code__.co_names


def _cross(injector: Injector, name: str) -> int:
    code = f"from pagetier.shm.failpoints import point; point('{name}'); point('{name}'); print('on')"
    return subprocess.run([sys.executable, "-c", code], env=environment(injector.path), check=False).returncode


def test_a_process_dies_at_the_armed_crossing(tmp_path: Path) -> None:
    with Injector(tmp_path / "injector") as injector:
        assert _cross(injector, "some.point") == 0
        assert [(one.name, times) for one, times in injector.met().items()] == [("some.point", 2)]
        injector.arm(Case(Action.DIE, POINTS, "some.point", number=2))
        assert _cross(injector, "another.point") == 0 and not injector.struck
        assert _cross(injector, "some.point") == -9 and injector.pid
        injector.arm(Case(Action.DIE, POINTS, "some.point"), pid=os.getpid())
        assert _cross(injector, "some.point") == 0 and not injector.struck
