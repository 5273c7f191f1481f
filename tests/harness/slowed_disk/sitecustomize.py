"""Slows down a disk worker: with this folder in PYTHONPATH each page takes as many seconds more as a file says.

The variable SLOWED_DISK names the file. Pages are delayed one after the other, like those of one slow device.
"""

import os
import sys
import threading
from pathlib import Path
from typing import Any

_FILE = os.environ.get("SLOWED_DISK")


def _slow_down(file: Path) -> None:
    from eventually import pace
    from pagetier.tiers.worker import moved_pages

    read_pages, turn = moved_pages.read_pages, threading.Lock()

    def slowly(read_one: Any, memory: Any, task: Any) -> Any:
        def read_later(page: Any) -> Any:
            with turn:
                pace(float(file.read_text() or 0))
            return read_one(page)

        return read_pages(read_later, memory, task)

    moved_pages.read_pages = slowly


if _FILE and "pagetier.tiers.worker" in sys.orig_argv:
    _slow_down(Path(_FILE))
