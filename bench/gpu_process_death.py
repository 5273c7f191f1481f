"""Measures how long a dead process's GPU writes to shared memory after its pidfd fired; store.quarantine must cover it.

A child pins a piece of shared memory, gives its GPU seconds of copies into it, and is killed. Without a GPU the result
says that nothing was measured.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from measure import Result, at_most
from results_file import row_of, save, show

RESULTS = Path(__file__).parent / "results" / "gpu_death.json"
MIB = 1 << 20
PIECE, PIECES = 64 * MIB, 8
QUEUED = 2000  # copies: about two seconds of a PCIe 5 link
WATCH_S = 3.0
ROUNDS = 5


def child(path: str) -> None:
    """Gives the GPU more work than it can finish before this process is killed."""
    from pagetier.kernels.pinning.cuda_registrar import cuda_registrar

    with Path(path).open("r+b") as file:
        memory: Any = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.uint8)
    cuda_registrar("cuda:0").register(memory.data_ptr(), len(memory))
    sources = [torch.full((PIECE,), value, dtype=torch.uint8, device="cuda:0") for value in range(1, 9)]
    torch.cuda.synchronize()
    for number in range(QUEUED):
        at = number % PIECES * PIECE
        memory[at : at + PIECE].copy_(sources[number // PIECES % len(sources)], non_blocking=True)
        if number == 8:
            print("writing", flush=True)
    time.sleep(60)


def last_write_after_death() -> float:
    """Returns the seconds from the pidfd's firing to the last change that was seen; 0 if there was none."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.truncate(PIECE * PIECES)
        memory = mmap.mmap(file.fileno(), 0)
        process = subprocess.Popen([sys.executable, __file__, "--child", file.name], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        pidfd = os.pidfd_open(process.pid)
        process.send_signal(signal.SIGKILL)
        select.select([pidfd], [], [])
        seconds = _last_change(memory, time.monotonic())
        os.close(pidfd)
        process.communicate()
    return seconds


def _last_change(memory: mmap.mmap, died: float) -> float:
    places = range(0, PIECE * PIECES, MIB)
    seen, changed = [memory[at] for at in places], 0.0
    while (now := time.monotonic()) < died + WATCH_S:
        current = [memory[at] for at in places]
        if current != seen:
            seen, changed = current, now - died
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--child", metavar="PATH", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    record: dict[str, Any] = {"measured": False, "reason": "no GPU on this machine"}
    if torch.cuda.is_available():
        longest = max(last_write_after_death() for _ in range(ROUNDS))
        result = Result("gpu_writes_after_death_s", longest, "s", f"the longest of {ROUNDS} deaths", at_most(0.25))
        record = {"measured": True, "device": torch.cuda.get_device_name(0), "results": [row_of(result)]}
    save(record, RESULTS)
    if options.json:
        print(json.dumps(record))
    else:
        show(record)


if __name__ == "__main__":
    main()
