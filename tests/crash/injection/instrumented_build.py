"""Builds the project with failpoints, beside the normal build: the Python rooms are links, the core is compiled."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

from compiled_library import BUILD, building, compile_library, library
from injection.injector import VARIABLE

ROOT: Final = Path(__file__).parents[3]
HERE: Final = Path(__file__).parent
INJECT: Final = HERE / "inject.c"
CORE: Final = "_core.abi3.so"
_ROOMS: Final = ("client", "daemon", "kernels", "tiers")
_INSTEAD: Final = {"failpoints.py": HERE / "failpoints_on.py"}


def built(mutant: Path | None = None) -> Path:
    """Returns the folder to put first on the path of a process that uses this build, which is rebuilt if needed.

    `mutant` is a patch with a bug for the core.
    """
    with building():
        place = BUILD / (mutant.stem if mutant is not None else "variant")
        stamp, digest = place.with_suffix(".digest"), digest_of_sources(mutant)
        if not stamp.exists() or stamp.read_text() != digest:
            _link(place / "pagetier")
            level = "-O2" if mutant is None else "-O0"  # a mutant is run once and briefly
            _compile(_core_with(mutant, place / "mutated"), place / "pagetier" / "shm" / CORE, level)
            stamp.write_text(digest)
    return place


def environment(control: Path, mutant: Path | None = None) -> dict[str, str]:
    """Returns the environment of a process into which this control file injects."""
    folders = [built(mutant), HERE.parent, ROOT / "tests" / "harness"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PAGETIER_")}
    paths = os.pathsep.join(map(str, folders))
    return kept | {"PYTHONPATH": paths, "LD_PRELOAD": str(library(INJECT)), VARIABLE: str(control)}


def digest_of_sources(mutant: Path | None = None) -> str:
    """Returns a digest of the sources of the core and of the files that are linked."""
    sources = [*sorted((ROOT / "shm").rglob("*.[ch]")), Path(__file__)]
    sources += [mutant] if mutant is not None else []
    names = sorted(path.name for path in (ROOT / "shm").glob("*.py*"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources) + repr(names).encode()).hexdigest()


def _link(package: Path) -> None:
    (package / "shm").mkdir(parents=True, exist_ok=True)
    wanted = {package / room: ROOT / room for room in _ROOMS}
    own = [path for path in (ROOT / "shm").iterdir() if path.name not in ("__pycache__", CORE)]
    wanted[package / "__init__.py"] = ROOT / "src" / "pagetier" / "__init__.py"
    wanted |= {package / "shm" / path.name: _INSTEAD.get(path.name, path) for path in own}
    for link, target in wanted.items():
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def _core_with(mutant: Path | None, copy: Path) -> Path:
    """Returns the room `shm`, or a copy of it with the bug; in the copy, the patched file has no failpoints."""
    if mutant is None:
        return ROOT / "shm"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(ROOT / "shm", copy, ignore=shutil.ignore_patterns("*.so", "*.py*"))
    mutate = ROOT / "tests" / "shm" / "stress" / "mutate.py"
    subprocess.run([sys.executable, str(mutate), str(mutant), str(copy / "core")], check=True)
    return copy


def _compile(room: Path, target: Path, level: str) -> None:
    """Compiles the core. inject.c, which is preloaded, defines what a failpoint does."""
    flags = [level, "-fvisibility=hidden", "-DPy_LIMITED_API=0x030B0000", "-DPT_POINTS"]
    flags += [f"-I{sysconfig.get_paths()['include']}", f"-I{room}"]
    compile_library([str(room / "_core.c")], target, *flags)
