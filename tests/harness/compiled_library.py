"""Compiles libraries that are preloaded into the processes of a test."""

from __future__ import annotations

import fcntl
import hashlib
import shlex
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

BUILD: Final = Path(__file__).parents[1] / "crash" / "build"
_FLAGS: Final = ("-shared", "-fPIC", "-std=gnu11", "-O2", "-pthread")
_STRICT: Final = ("-Wall", "-Wextra", "-Werror")


def compiler() -> list[str]:
    """Returns the command of the compiler."""
    return shlex.split(sysconfig.get_config_var("CC") or "cc")


def compile_library(sources: list[str], target: Path, *more: str) -> None:
    """Compiles sources into a library, which is complete as soon as it exists."""
    subprocess.run([*compiler(), *_FLAGS, *more, *sources, "-o", f"{target}.new"], check=True)
    Path(f"{target}.new").rename(target)


def library(source: Path) -> Path:
    """Returns the library of a source; builds it if the source, or a header beside it, has changed."""
    files = [source, *sorted(source.parent.glob("*.h"))]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    place = BUILD / f"{source.stem}-{digest}.so"
    with building():
        if not place.exists():
            compile_library([str(source)], place, *_STRICT)
    return place


@contextmanager
def building() -> Iterator[None]:
    """Takes a lock, so that test processes that arrive at the same time build only once."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
