"""A shard of a proof: one command, and the lines of its output that a seed determines."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from msgspec import Struct

ROOT: Final = Path(__file__).parents[3]
MARK: Final = "proof: "
"""Begins the lines of a shard's output that depend on nothing but its seed and its inputs."""
SKIPPED: Final = "skipped: "
"""Begins, after MARK, the lines that name what this machine cannot try."""
_THREADS: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


class Shard(Struct, frozen=True):
    """A part of a proof that runs alone.

    Attributes:
        name: Is unique in its proof.
        command: Runs in the root of the repository. It ends with 0 if what it tries holds.
    """

    name: str
    command: tuple[str, ...]


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
    began = time.monotonic()
    seeds = dict.fromkeys(("SEED", "SWEEP_SEED", "TEST_SEED"), str(seed))
    environ = os.environ | dict.fromkeys(_THREADS, "1") | seeds | {"PYTHON": sys.executable}
    done = subprocess.run(
        shard.command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return Outcome(done.returncode, round(time.monotonic() - began, 1), summary_of(done.stdout), done.stdout)


def summary_of(output: str) -> tuple[str, ...]:
    """Returns the lines of an output that belong to the summary."""
    return tuple(line.removeprefix(MARK) for line in output.splitlines() if line.startswith(MARK))
