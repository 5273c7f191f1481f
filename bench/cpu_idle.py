"""`python bench/cpu_idle.py`: measures the cost of the daemon and its commands while nothing happens.

It times commands and scrapes, takes the idle daemon's CPU time and private memory, and compares the time until it is
ready with the time to touch as much memory on as many threads.
"""

from __future__ import annotations

import atexit
import ctypes
import http.client
import mmap
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from daemon_setup import Stage
from measure import Result, at_most, main, time_of

SIZE, ENTRIES = 8 << 30, 1_000_000
ROUNDS, SCRAPES, IDLE_S = 9, 60, 20.0
MADV_POPULATE_WRITE = 23
MADVISE = ctypes.CDLL(None).madvise
MADVISE.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
PAGETIER = (sys.executable, "-c", "from pagetier.daemon.cli import main; main()")


def measure() -> Iterator[Result]:
    """Runs all measurements."""
    place = Path(f"/tmp/pagetier-bench-{os.getpid()}.sock")
    yield ready()
    beside = f"python -c pass: {bare():.0f} ms"
    yield Result("pagetier --help", median(ROUNDS, run("--help")) * 1e3, "ms", beside, at_most(200))
    large = ("--arena-size", "256MiB", "--set", "arena.frame_size=4KiB", "--set", f"index.entries={ENTRIES}")
    with Stage(*large, "--set", f"metrics.listen={place}") as stage, stage.client():
        stats = median(ROUNDS, run("stats", "--socket", str(stage.socket)))
        yield Result("pagetier stats, room for 1,000,000 pages", stats * 1e3, "ms", "", at_most(200))
        yield Result("a scrape, of the same", median(SCRAPES, lambda: scrape(place)) * 1e3, "ms", "", at_most(20))
        yield memory("private memory of the daemon, with metrics", stage)
    with Stage("--arena-size", "64MiB") as stage, stage.client():
        yield memory("private memory of the daemon", stage)
        time.sleep(2.0)
        before = ticks(stage)
        time.sleep(IDLE_S)
        share = (ticks(stage) - before) / os.sysconf("SC_CLK_TCK") / IDLE_S
        yield Result(
            "the idle daemon, of a core", 100 * share, "%", f"{IDLE_S:.0f} s, one client attached", at_most(0.5)
        )


def median(rounds: int, action: Callable[[], object]) -> float:
    """Returns the median seconds of a call, after a warm-up call."""
    action()
    return statistics.median(time_of(action) for _ in range(rounds))


def run(*words: str) -> Callable[[], object]:
    """Returns a call that runs a `pagetier` command."""
    return lambda: subprocess.run([*PAGETIER, *words], stdout=subprocess.DEVNULL, check=True)


def have_compiled() -> None:
    """Makes started processes find their modules compiled, as pip leaves them; a checkout may have none."""
    folder = f"/tmp/pagetier-bench-{os.getpid()}.pyc"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = folder
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def bare() -> float:
    """Returns the milliseconds of a Python that does nothing."""
    return 1e3 * median(ROUNDS, lambda: subprocess.run([sys.executable, "-c", "pass"], check=True))


def scrape(place: Path) -> None:
    """Scrapes the metrics once over the daemon's socket."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(os.fspath(place))
    connection.request("GET", "/metrics")
    assert b"pagetier_build_info" in connection.getresponse().read()
    connection.close()


def memory(name: str, stage: Stage) -> Result:
    """Returns the daemon's RssAnon in MB."""
    status = Path(f"/proc/{stage.pid}/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found
    return Result(name, int(found[1]) / 1e3, "MB", "RssAnon", at_most(60))


def ticks(stage: Stage) -> int:
    """Returns the daemon's CPU time in clock ticks."""
    return sum(map(int, Path(f"/proc/{stage.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


def ready() -> Result:
    """Measures the time from exec until an engine may attach, in turn with touching as much memory."""
    start()  # compiles the modules
    times = [(start(), touch()) for _ in range(7)]
    ratio = statistics.median(ours / plain for ours, plain in times)
    plain = statistics.median(plain for _, plain in times)
    return Result("ready with 8 GiB, over touching them", ratio, "x", f"first touch: {plain:.2f} s", at_most(1.2))


def start() -> float:
    """Returns the seconds of a start.

    The daemon reports it: polling would take CPU time from the threads that populate.
    """
    with (
        tempfile.TemporaryDirectory(prefix="pagetier-bench-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify,
    ):
        notify.bind(f"{folder}/notify")
        notify.settimeout(120)
        began = time.perf_counter()
        with Stage("--arena-size", str(SIZE), "--set", "log.level=error", NOTIFY_SOCKET=f"{folder}/notify") as stage:
            while b"READY=1" not in notify.recv(4096):
                pass
            took = time.perf_counter() - began
            stage.client().close()
            return took


def touch() -> float:
    """Returns the seconds that touching the memory takes, on as many threads as there are cores."""
    cores = len(os.sched_getaffinity(0))
    descriptor = os.memfd_create("pagetier-bench")
    os.ftruncate(descriptor, SIZE)
    with mmap.mmap(descriptor, SIZE) as arena, ThreadPoolExecutor(cores) as pool:
        first = ctypes.c_char.from_buffer(arena)
        share = SIZE // cores
        pieces = [ctypes.addressof(first) + at * share for at in range(cores)]
        began = time.perf_counter()
        # mmap.mmap.madvise holds the GIL, so the threads would take turns.
        failed = any(pool.map(lambda piece: MADVISE(piece, share, MADV_POPULATE_WRITE), pieces))
        took = time.perf_counter() - began
        del first
    os.close(descriptor)
    assert not failed, "this kernel cannot populate memory"
    return took


if __name__ == "__main__":
    have_compiled()
    main("The cost of an idle daemon", measure)
