"""Measures copies between host memory and the arena through the client, relative to memcpy on as many threads.

memcpy copies between arrays of numpy, which are in huge pages where the system permits that. The arena is in pages of
/dev/shm. What these cost is said beside each result: memcpy between an array and /dev/shm, over memcpy between arrays.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

import numpy as np
import numpy.typing as npt

from daemon_setup import Stage, settle
from measure import REPORTED, Goal, Result, at_least, main, median_times
from pagetier.client import Client, Keys, Namespace

MIB = 1 << 20
PAGE = 8 * MIB
ROUNDS = {1: 60, 8: 20, 64: 6}  # by pages a call
GOALS = {8: at_least(0.9)}
ARENA_MIB = 2048
WORKING_SET = 256 * MIB  # several times the last-level cache
NUMBERS = itertools.count()

Bytes = npt.NDArray[np.uint8]


def warm(nbytes: int) -> Bytes:
    """Returns memory that was touched, since the first touch is not measured."""
    return np.random.default_rng(5).integers(0, 256, nbytes, dtype=np.uint8)


def shared(nbytes: int) -> Bytes:
    """Returns touched memory in pages like those of the arena."""
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.truncate(nbytes)
        mapped = mmap.mmap(file.fileno(), nbytes)
    memory = np.frombuffer(mapped, np.uint8)
    memory[:] = 1
    return memory


class Memcpy:
    """The C library's memcpy on threads that exist already, the calling one included."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(max(1, threads - 1))

    def __call__(self, to: Bytes, source: Bytes) -> None:
        """Copies equal parts on all threads."""
        bounds = np.linspace(0, to.nbytes, self._threads + 1, dtype=np.uint64).tolist()
        parts = [(to.ctypes.data + a, source.ctypes.data + a, b - a) for a, b in itertools.pairwise(bounds)]
        others = [self._pool.submit(ctypes.memmove, *part) for part in parts[1:]]
        ctypes.memmove(*parts[0])
        wait(others)


def copies(client: Client, pages: int, name: str, goal: Goal) -> Iterator[Result]:
    """Measures stores and loads of so many pages a call, in turn with memcpy of as many bytes.

    Neither side finds its bytes in a cache: pages and plain memory rotate through WORKING_SET bytes each.

    Yields:
        The results of the load and of the store.
    """
    space, nbytes = Namespace(model="bench", dtype="none", page_tokens=1), pages * PAGE
    plain = warm(max(WORKING_SET, nbytes)).reshape(-1, nbytes)
    memory = warm(max(WORKING_SET, nbytes)).reshape(-1, nbytes)
    segment = shared(max(WORKING_SET, nbytes)).reshape(-1, nbytes)
    rows, memcpy = itertools.cycle(range(len(memory))), Memcpy(client.threads)

    def fresh() -> Keys:
        return space.keys([next(NUMBERS) for _ in range(pages)])

    def copied(to: Bytes, source: Bytes) -> None:
        memcpy(to[next(rows)], source[next(rows)])

    stored = [fresh() for _ in memory]

    def store(keys: Keys, row: int) -> None:
        assert client.store(keys, memory[row]).stored == pages

    def load(row: int) -> None:
        with client.match(stored[row]) as match:
            assert client.load(match, memory[row]) == pages

    def compared(kind: str, action: Callable[[], object], to: Bytes, source: Bytes) -> Result:
        between_arrays = partial(copied, memory, plain)
        ours, theirs, small = median_times(ROUNDS[pages], action, between_arrays, partial(copied, to, source))
        against = f"memcpy: {nbytes / theirs / 2**30:.1f} GiB/s on as many threads ({client.threads})"
        against += f", {theirs / small:.2f} x with /dev/shm"
        return Result(f"{kind}_{name}_over_memcpy", theirs / ours, "x", against, goal)

    for _ in range(ARENA_MIB * MIB // nbytes):  # so that this process has mapped every frame of the arena
        store(fresh(), 0)
    for row, keys in enumerate(stored):
        store(keys, row)
    yield compared("load", lambda: load(next(rows)), memory, segment)
    yield compared("store", lambda: store(fresh(), next(rows)), segment, memory)


def measure() -> Iterator[Result]:
    """Measures with the client's own choice of threads, then with one."""
    with Stage("--arena-size", f"{ARENA_MIB}MiB") as stage:
        for threads, suffix in ((0, ""), (1, "_1_thread")):
            with Client(stage.socket, timeout=10, threads=threads) as client:
                assert client.wait_attached(120)
                settle()
                for pages in ROUNDS:
                    goal = REPORTED if suffix else GOALS.get(pages, REPORTED)
                    yield from copies(client, pages, f"{pages}x8mib{suffix}", goal)


if __name__ == "__main__":
    main("Copying pages between host memory and the arena", measure)
