"""Builds the project with a deliberate bug in its C core, for tests that must find it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
_STRESS: Final = ROOT / "tests" / "shm" / "stress"
_ROOMS: Final = ("client", "daemon", "kernels", "tiers")


def mutant(name: str, folder: Path) -> Path:
    """Builds the core with a mutant of the stress tests, DRIVER/NAME; returns the folder to put first on the path."""
    package = folder / "pagetier"
    shutil.copytree(ROOT / "shm", package / "shm", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for room in _ROOMS:
        (package / room).symlink_to(ROOT / room)
    (package / "__init__.py").symlink_to(ROOT / "src" / "pagetier" / "__init__.py")
    mutate = [str(_STRESS / "mutate.py"), str(_STRESS / "mutants.txt"), str(package / "shm" / "core"), name]
    subprocess.run([sys.executable, *mutate], check=True)
    _compile(package / "shm")
    return folder


def _compile(room: Path) -> None:
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    flags = ["-shared", "-fPIC", "-std=gnu11", "-O1", "-pthread", "-DPy_LIMITED_API=0x030B0000"]
    includes = [f"-I{sysconfig.get_paths()['include']}", f"-I{room}"]
    output = ["-o", str(room / "_core.abi3.so")]
    subprocess.run([*compiler, *flags, *includes, str(room / "_core.c"), *output], check=True)
