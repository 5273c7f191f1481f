"""Runs a process with the recorder, which writes the changes of a folder to a stream."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from compiled_library import compiler, library
from injection.instrumented_build import INJECT

_CRASH: Final = Path(__file__).parents[1]
_SUPPORT: Final = _CRASH.parent / "harness"


def can_record() -> bool:
    """Returns whether a compiler is installed."""
    return shutil.which(compiler()[0]) is not None


def recording(folder: Path, stream: Path) -> dict[str, str]:
    """Returns the environment of a recorded process and its children. `folder` is recorded; its path has no links."""
    return {"LD_PRELOAD": str(library(INJECT)), "RECORD_UNDER": str(folder), "RECORD_TO": str(stream)}


def plain() -> dict[str, str]:
    """Returns the environment of a process that imports these modules without starting threads."""
    paths = os.pathsep.join(map(str, (_CRASH, _SUPPORT)))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PAGETIER_")}
    return kept | {"PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def record(module: str, folder: Path, stream: Path, *arguments: str) -> None:
    """Runs a module on a folder and records it. Raises CalledProcessError if it fails."""
    command = [sys.executable, "-m", module, str(folder), *arguments]
    subprocess.run(command, env=plain() | recording(folder, stream), check=True)
