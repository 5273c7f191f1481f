"""Reads and writes the device itself: O_DIRECT, without pagetier."""

from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path
from typing import Final

MIB: Final = 1 << 20
BLOCK: Final = 4 * MIB


def clear(path: Path) -> None:
    """Removes a file and waits until the file system has finished the removal."""
    path.unlink(missing_ok=True)
    os.sync()
    time.sleep(1.0)


def write_direct(path: Path, content: mmap.mmap, total: int) -> None:
    """Writes a file of `total` bytes in blocks, overwriting an existing one, and syncs it."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600)
    try:
        view = memoryview(content)
        for at in range(0, total, BLOCK):
            start = at % len(content)
            os.pwrite(descriptor, view[start : start + BLOCK], at)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_direct(path: Path, total: int, threads: int) -> None:
    """Reads such a file; the threads take its blocks in turn."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    room = mmap.mmap(-1, threads * BLOCK)
    view = memoryview(room)

    def read(number: int) -> None:
        mine = [view[number * BLOCK : (number + 1) * BLOCK]]
        for at in range(number * BLOCK, total, threads * BLOCK):
            os.preadv(descriptor, mine, at)

    try:
        others = [threading.Thread(target=read, args=(number,)) for number in range(threads)]
        for thread in others:
            thread.start()
        for thread in others:
            thread.join()
    finally:
        os.close(descriptor)
