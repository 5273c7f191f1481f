"""Checks the failpoints: some operation crosses each of them, and a release build contains none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from kill_points.control import Action, Control
from kill_points.failpoint_table import OPERATIONS, points_in_sources, table
from kill_points.instrumented_build import ROOT, environment
from kill_points.operation import Role
from pagetier.shm import _core

_MOST_NS = 500  # about 50 on an idle machine


def test_every_failpoint_is_swept() -> None:
    """Fails after a failpoint was added, until `python -m kill_points.failpoint_table` was run in tests/crash.

    If no operation crosses the failpoint, one has to be added.
    """
    swept = {point for of_role in table().values() for of_one in of_role.values() for point in of_one}
    assert sorted(points_in_sources() - swept) == [], "no operation crosses these failpoints"
    assert sorted(swept - points_in_sources()) == [], "these failpoints are in the table but not in the sources"


def test_every_operation_and_role_is_swept() -> None:
    assert set(table()) == {kind.__name__ for kind in OPERATIONS}
    roles = [role for of_role in table().values() for role in of_role]
    assert set(roles) == set(Role)


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


def test_the_installed_core_has_no_failpoints() -> None:
    assert b"pt_crossed" not in Path(_core.__file__).read_bytes()


def test_a_failpoint_in_python_costs_next_to_nothing() -> None:
    command = [sys.executable, "-m", "timeit", "-n", "100000", "-s", "from pagetier.shm.failpoints import point"]
    output = subprocess.run([*command, 'point("client.attached")'], check=True, capture_output=True, text=True).stdout
    nanoseconds = float(output.split("best of")[1].split(": ")[1].split()[0])
    assert "nsec" in output and nanoseconds < _MOST_NS


def _cross(control: Control, name: str) -> int:
    code = f"from pagetier.shm.failpoints import point; point('{name}'); point('{name}'); print('on')"
    return subprocess.run([sys.executable, "-c", code], env=environment(control.path), check=False).returncode


def test_a_process_dies_at_the_armed_crossing(tmp_path: Path) -> None:
    with Control(tmp_path / "points") as control:
        assert _cross(control, "some.point") == 0
        assert [(one.name, times) for one, times in control.crossed().items()] == [("some.point", 2)]
        control.arm("some.point", Action.KILL, times=2)
        assert _cross(control, "another.point") == 0 and not control.fired
        assert _cross(control, "some.point") == -9 and control.fired
        control.arm("some.point", Action.KILL, pid=os.getpid())
        assert _cross(control, "some.point") == 0 and not control.fired
