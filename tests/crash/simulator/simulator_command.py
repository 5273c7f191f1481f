"""Runs a command of the simulator in a new process, as `make` does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[3]
_FOLDERS: Final = (_ROOT / "tests" / "crash", _ROOT / "tests" / "harness", _ROOT / "bench")
_PATIENCE_S: Final = 900
_RUN: Final = "import runpy; runpy.run_module('simulator', run_name='__main__', alter_sys=True)"

Done = subprocess.CompletedProcess[str]


def simulate(folder: Path, *arguments: str, broken: str = "", core: Path | None = None) -> Done:
    """Runs a command with its report in a folder, and returns the finished process.

    `broken` is a program with a bug that runs first; `core` is a folder that comes first on the path.
    """
    path = os.pathsep.join(map(str, [*([core] if core else []), *_FOLDERS]))
    environ = os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", broken + _RUN, "--report", str(folder), *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
