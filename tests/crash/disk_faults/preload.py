"""Builds gate.c and other libraries, and sets the environment that preloads them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from disk_faults.gate import VARIABLE

_HERE: Final = Path(__file__).parent
_BUILD: Final = _HERE.parent / "build"
_FLAGS: Final = ("-shared", "-fPIC", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")


def library(source: Path = _HERE / "gate.c") -> Path:
    """Returns a library to be preloaded; builds it if its source has changed."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    place = _BUILD / f"{source.stem}-{digest}.so"
    _BUILD.mkdir(exist_ok=True)
    with (_BUILD / "gate.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            _compile(source, place)
    return place


def _compile(source: Path, place: Path) -> None:
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")
    subprocess.run([*compiler, *_FLAGS, str(source), "-o", f"{place}.new"], check=True)
    Path(f"{place}.new").rename(place)


@contextmanager
def gated(control: Path) -> Iterator[None]:
    """Preloads the gate into all processes that are started within the block, and into their children."""
    news = {"LD_PRELOAD": str(library()), VARIABLE: str(control)}
    before = {name: os.environ.get(name) for name in news}
    os.environ.update(news)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
