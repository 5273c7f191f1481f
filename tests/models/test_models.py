"""The core's protocols in every interleaving: spin looks at all states of the models, and refutes their mutants."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

HERE = Path(__file__).parent
CORE = HERE.parents[1] / "shm/core"
LONGEST = 1800  # seconds, on a machine that has much else to do
PATHS = [path.relative_to(HERE) for path in sorted(HERE.rglob("*.pml")) if "\ninit" in path.read_text()]

pytestmark = pytest.mark.skipif(
    not which("spin") or not which("gcc"), reason="needs gcc and spin (Debian's package `spin`)"
)


@pytest.mark.parametrize("model", [str(path.with_suffix("")) for path in PATHS])
def test_holds_in_every_state_and_its_mutants_do_not(model: str) -> None:
    command = [sys.executable, str(HERE / "check_models.py"), model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_functions_that_models_follow_are_there() -> None:
    named = {name for path in HERE.rglob("*.pml") for name in re.findall(r"\bpt_\w+", path.read_text())}
    there = {name for path in CORE.rglob("*.h") for name in re.findall(r"\bpt_\w+", path.read_text())}
    assert named > {"pt_find", "pt_settle"}
    assert not named - there


def test_a_model_without_a_mistake_to_find_is_a_model_that_can_not_fail() -> None:
    assert PATHS
    assert not [path for path in PATHS if "MUTANT_" not in (HERE / path).read_text()]
