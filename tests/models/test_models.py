"""Checks that the models follow the code. The proof `models` explores their states and refutes their mutants."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
CORE = HERE.parents[1] / "shm/core"
PATHS = [path.relative_to(HERE) for path in sorted(HERE.rglob("*.pml")) if "\ninit" in path.read_text()]


def test_the_functions_that_the_models_follow_exist() -> None:
    named = {name for path in HERE.rglob("*.pml") for name in re.findall(r"\bpt_\w+", path.read_text())}
    existing = {name for path in CORE.rglob("*.h") for name in re.findall(r"\bpt_\w+", path.read_text())}
    assert named > {"pt_find", "pt_settle"}
    assert not named - existing


def test_every_model_has_a_mutant() -> None:
    assert PATHS
    assert not [path for path in PATHS if "MUTANT_" not in (HERE / path).read_text()]
