"""Starts and ends adversarial processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

NOBODY: Final = 65534
_FOLDERS: Final = [str(folder) for folder in (Path(__file__).parents[1], Path(__file__).parents[2] / "harness")]


@contextmanager
def harm(module: str, act: str, socket: Path, user: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `act` of a module of this package, from the begin of the attack to the end of the block."""
    command = [
        sys.executable,
        "-m",
        f"adversarial.{module}",
        act,
        str(socket),
        str(os.geteuid() if user is None else user),
    ]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(_FOLDERS)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n", f"{act} did not begin"
            yield process
        finally:
            process.kill()
