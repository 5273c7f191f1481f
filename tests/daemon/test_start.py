"""Tests what the daemon's process sets before it imports anything, and what it imports late."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

VARIABLE: Final = "OPENBLAS_NUM_THREADS"
PROGRAM: Final = f"""
import contextlib, os
from pagetier.daemon.start import start
with contextlib.suppress(SystemExit):
    start()
import numpy
print(os.environ["{VARIABLE}"], len(os.listdir("/proc/self/task")))
"""

AHEAD: Final = """
import asyncio, sys, threading
import pagetier.daemon.lifecycle
from pagetier.daemon.disk.device_opening import DeviceOpening, import_ahead
async def begin():
    DeviceOpening(None, 0, None)
asyncio.run(begin())
print("numpy" in sys.modules)
import_ahead()
for thread in threading.enumerate():
    if thread.name == "pagetierd-import":
        thread.join()
print("numpy" in sys.modules)
"""


def after_start(**environ: str) -> list[str]:
    """Returns the variable and the number of threads of a process in which the command has ended."""
    own = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-c", PROGRAM, "--version"]
    done = subprocess.run(command, env=own | environ, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


def test_numpy_starts_no_threads_unless_an_administrator_wants_them() -> None:
    assert after_start() == ["1", "1"]
    assert after_start(**{VARIABLE: "2"})[0] == "2"


def test_numpy_is_imported_in_a_thread_once_the_worker_is_served() -> None:
    done = subprocess.run([sys.executable, "-c", AHEAD], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
