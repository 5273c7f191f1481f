"""Checks the core's protocols in every interleaving: spin explores all states of the models and refutes the mutants."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

HERE = Path(__file__).parent
CORE = HERE.parents[1] / "shm/core"
LONGEST = 1800  # seconds, on a busy machine
PATHS = [path.relative_to(HERE) for path in sorted(HERE.rglob("*.pml")) if "\ninit" in path.read_text()]

pytestmark = pytest.mark.skipif(
    not which("spin") or not which("gcc"), reason="needs gcc and spin (Debian's package `spin`)"
)


@pytest.mark.parametrize("model", [str(path.with_suffix("")) for path in PATHS])
def test_a_model_holds_in_every_state_and_its_mutants_do_not(model: str) -> None:
    command = [sys.executable, str(HERE / "check_models.py"), model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_functions_that_the_models_follow_exist() -> None:
    named = {name for path in HERE.rglob("*.pml") for name in re.findall(r"\bpt_\w+", path.read_text())}
    existing = {name for path in CORE.rglob("*.h") for name in re.findall(r"\bpt_\w+", path.read_text())}
    assert named > {"pt_find", "pt_settle"}
    assert not named - existing


def test_every_model_has_a_mutant() -> None:
    assert PATHS
    assert not [path for path in PATHS if "MUTANT_" not in (HERE / path).read_text()]
