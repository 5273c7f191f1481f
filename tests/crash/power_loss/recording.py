"""Runs a process with the recorder, which writes the changes of a folder to a stream."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
_BUILD: Final = HERE.parent / "build"
_CRASH: Final = HERE.parent
_SUPPORT: Final = HERE.parents[1] / "harness"


def can_record() -> bool:
    """Returns whether a compiler is installed."""
    return shutil.which(shlex.split(_compiler())[0]) is not None


def recorder() -> Path:
    """Returns the library to preload; builds it if its source is newer."""
    _BUILD.mkdir(exist_ok=True)
    source, library = HERE / "recorder.c", _BUILD / "recorder.so"
    with (_BUILD / "recorder.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
            beside = library.with_suffix(".new")
            flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
            subprocess.run([*shlex.split(_compiler()), *flags, str(source), "-o", str(beside), "-ldl"], check=True)
            beside.rename(library)
    return library


def recording(folder: Path, stream: Path) -> dict[str, str]:
    """Returns the environment of a recorded process and its children. `folder` is recorded; its path has no links."""
    return {"LD_PRELOAD": str(recorder()), "RECORD_UNDER": str(folder), "RECORD_TO": str(stream)}


def plain() -> dict[str, str]:
    """Returns the environment of a process that imports these modules without starting threads."""
    paths = os.pathsep.join(map(str, (_CRASH, _SUPPORT)))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PAGETIER_")}
    return kept | {"PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def record(module: str, folder: Path, stream: Path, *arguments: str) -> None:
    """Runs a module on a folder and records it. Raises CalledProcessError if it fails."""
    command = [sys.executable, "-m", module, str(folder), *arguments]
    subprocess.run(command, env=plain() | recording(folder, stream), check=True, timeout=120)


def _compiler() -> str:
    return sysconfig.get_config_var("CC") or "cc"
