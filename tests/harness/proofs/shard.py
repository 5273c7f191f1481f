"""A shard of a proof: one command, and the lines of its output that a seed determines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from msgspec import Struct

from eventually import Stopwatch

ROOT: Final = Path(__file__).parents[3]
MARK: Final = "proof: "
"""Begins the lines of a shard's output that depend on nothing but its seed and its inputs."""
SKIPPED: Final = "skipped: "
"""Begins, after MARK, the lines that name what this machine cannot try."""
NOT_STARTED: Final = 127
"""The exit status of a command that cannot be started, as a shell gives it."""
_THREADS: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
_LEFT_OUT: Final = frozenset(
    (
        *("ALL", "GNUMAKEFLAGS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MINUTES", "NAME", "POWER", "PYTEST_ADDOPTS"),
        *("SECONDS", "SWEEP", "TEST_MINUTES", "TEST_RESTARTS", "WHEELS"),
    )
)
"""Variables that would have a shard try more, less or something else than on the next machine."""


class Shard(Struct, frozen=True):
    """A part of a proof that runs alone.

    Attributes:
        name: Is unique in its proof.
        command: Runs in the root of the repository. It ends with 0 if what it tries holds.
        environment: The environment of .engines that it needs and that the gate does not make. Without it, the shard
            tries nothing.
    """

    name: str
    command: tuple[str, ...]
    environment: str = ""

    @property
    def lacks_environment(self) -> bool:
        """Whether its environment was not made in this clone."""
        return bool(self.environment) and not (ROOT / ".engines" / self.environment / "bin" / "python").exists()


class Outcome(Struct, frozen=True):
    """What a shard did.

    Attributes:
        code: The exit status of the command.
        seconds: How long it took.
        summary: Its lines with MARK, without it, in their order.
        output: All that it printed.
    """

    code: int
    seconds: float
    summary: tuple[str, ...]
    output: str

    @property
    def skipped(self) -> tuple[str, ...]:
        """What this machine could not try, with the reasons."""
        return tuple(line.removeprefix(SKIPPED) for line in self.summary if line.startswith(SKIPPED))


def run(shard: Shard, seed: int) -> Outcome:
    """Runs a shard to its end.

    Args:
        shard: The shard.
        seed: Determines all that the shard draws. The commands find it in the variables SEED, SWEEP_SEED and TEST_SEED.

    Returns:
        What it did, and printed.
    """
    if shard.lacks_environment:
        return _untried(f"the environment {shard.environment} is missing")
    watch = Stopwatch()
    seeds = dict.fromkeys(("SEED", "SWEEP_SEED", "TEST_SEED"), str(seed))
    kept = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    environ = kept | dict.fromkeys(_THREADS, "1") | seeds | {"PYTHON": sys.executable}
    code, output = _output_of(shard.command, environ)
    return Outcome(code, round(watch.seconds, 1), summary_of(output), output)


def _untried(reason: str) -> Outcome:
    """Returns the outcome of a shard that was not started."""
    return Outcome(0, 0.0, (f"{SKIPPED}{reason}",), "")


def _output_of(command: tuple[str, ...], environ: dict[str, str]) -> tuple[int, str]:
    """Returns the exit status of a command and what it printed, in whatever encoding."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    except OSError as error:
        return NOT_STARTED, f"{error}: `make environments` makes the environments of engines\n"
    return done.returncode, done.stdout.decode(errors="replace")


def summary_of(output: str) -> tuple[str, ...]:
    """Returns the lines of an output that belong to the summary."""
    return tuple(line.removeprefix(MARK) for line in output.splitlines() if line.startswith(MARK))
