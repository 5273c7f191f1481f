"""Runs a process with the recorder in it; what it did to a folder comes back as a stream."""

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
    """Whether there is a compiler."""
    return shutil.which(shlex.split(_compiler())[0]) is not None


def recorder() -> Path:
    """The library to preload; built if its source is newer."""
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
    """Variables for a process, and for those that it starts. folder: what is recorded, without links in its path."""
    return {"LD_PRELOAD": str(recorder()), "RECORD_UNDER": str(folder), "RECORD_TO": str(stream)}


def plain() -> dict[str, str]:
    """Variables for a process that imports these modules, and starts no threads by itself."""
    paths = os.pathsep.join(map(str, (_CRASH, _SUPPORT)))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PAGETIER_")}
    return kept | {"PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def record(module: str, folder: Path, stream: Path, *arguments: str) -> None:
    """Runs a module on a folder, recorded. Raises CalledProcessError if it fails."""
    command = [sys.executable, "-m", module, str(folder), *arguments]
    subprocess.run(command, env=plain() | recording(folder, stream), check=True, timeout=120)


def _compiler() -> str:
    return sysconfig.get_config_var("CC") or "cc"
