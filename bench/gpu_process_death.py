"""Measures how long a dead process's GPU writes to shared memory after its pidfd fired: less than the quarantine.

A child pins a piece of shared memory, gives its GPU seconds of copies into it, and is killed.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch

from gpu_command import main
from measure import Result, at_most

MIB = 1 << 20
PIECES = 8
SOURCES = 8


class Scale(msgspec.Struct, frozen=True):
    """The amount of work. The defaults are about two seconds of a PCIe 5 link for each death."""

    device: str = "cuda:0"
    piece: int = 64 * MIB
    queued: int = 2000  # copies
    watch_s: float = 3.0
    rounds: int = 5


def child(path: str, scale: Scale) -> None:
    """Gives the GPU more work than it can finish before this process is killed."""
    with Path(path).open("r+b") as file:
        memory: Any = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.uint8)
    _pin(memory, scale.device)
    sources = [
        torch.full((scale.piece,), value, dtype=torch.uint8, device=scale.device) for value in range(1, SOURCES + 1)
    ]
    for number in range(scale.queued):
        at = number % PIECES * scale.piece
        memory[at : at + scale.piece].copy_(sources[number // PIECES % len(sources)], non_blocking=True)
        if number == PIECES:
            print("writing", flush=True)
    time.sleep(60)


def _pin(memory: Any, device: str) -> None:
    if device != "cpu":
        from pagetier.kernels.pinning.cuda_registrar import cuda_registrar

        cuda_registrar(device).register(memory.data_ptr(), len(memory))


def last_write_after_death(scale: Scale) -> float:
    """Returns the seconds from the pidfd's firing to the last change that was seen; 0 if there was none."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.truncate(scale.piece * PIECES)
        memory = mmap.mmap(file.fileno(), 0)
        command = [sys.executable, __file__, "--child", file.name, msgspec.json.encode(scale).decode()]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        if process.stdout.readline() != b"writing\n":
            raise SystemExit("the process that should be killed has failed")
        pidfd = os.pidfd_open(process.pid)
        process.send_signal(signal.SIGKILL)
        select.select([pidfd], [], [])
        seconds = _last_change(memory, time.monotonic(), scale)
        os.close(pidfd)
        process.communicate()
    return seconds


def _last_change(memory: mmap.mmap, died: float, scale: Scale) -> float:
    places = range(0, scale.piece * PIECES, MIB)
    seen, changed = [memory[at] for at in places], 0.0
    while (now := time.monotonic()) < died + scale.watch_s:
        current = [memory[at] for at in places]
        if current != seen:
            seen, changed = current, now - died
    return changed


def measured(scale: Scale) -> Iterator[Result]:
    """Measures some deaths."""
    longest = max(last_write_after_death(scale) for _ in range(scale.rounds))
    yield Result("gpu_writes_after_death_s", longest, "s", f"the longest of {scale.rounds} deaths", at_most(0.25))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], msgspec.json.decode(sys.argv[3], type=Scale))
    else:
        short = Scale("cpu", MIB, watch_s=0.2, rounds=1)
        main(__doc__, lambda: measured(Scale()), lambda: measured(short))
