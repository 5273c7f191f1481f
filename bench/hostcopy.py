"""Measures copies between host memory and the arena through the client, relative to memcpy in the same process."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from daemon_setup import Stage, settle
from measure import Result, at_least, main, median_times
from pagetier.client import Client, Keys, Namespace

MIB = 1 << 20
ROUNDS = 60
ARENA_MIB = 1024
WORKING_SET = 256 * MIB  # several times the last-level cache
NUMBERS = itertools.count()

Bytes = npt.NDArray[np.uint8]


def warm(nbytes: int) -> Bytes:
    """Returns memory that was touched, since the first touch is not measured."""
    return np.random.default_rng(5).integers(0, 256, nbytes, dtype=np.uint8)


def memcpy(to: Bytes, source: Bytes) -> None:
    """Calls the C library's memcpy."""
    ctypes.memmove(to.ctypes.data, source.ctypes.data, source.nbytes)


def copies(client: Client, name: str, nbytes: int, threads: str) -> Iterator[Result]:
    """Measures store and load of one page, in turn with memcpy of as many bytes.

    Neither side finds its bytes in a cache: pages and plain memory rotate through WORKING_SET bytes each.

    Yields:
        The results of the store and of the load.
    """
    space = Namespace(model="bench", dtype="none", page_tokens=1)
    plain = warm(WORKING_SET).reshape(-1, nbytes)
    memory = warm(WORKING_SET).reshape(-1, nbytes)
    rows = itertools.cycle(range(len(memory)))
    stored = [space.keys([next(NUMBERS)]) for _ in memory]

    def store(keys: Keys, row: int) -> None:
        assert client.store(keys, memory[row]).stored == 1

    def load(row: int) -> None:
        with client.match(stored[row]) as match:
            assert client.load(match, memory[row]) == 1

    for _ in range(ARENA_MIB * MIB // nbytes):  # so that this process has mapped every frame of the arena
        store(space.keys([next(NUMBERS)]), 0)
    for row, keys in enumerate(stored):
        store(keys, row)
    loading, copying = median_times(
        ROUNDS, lambda: load(next(rows)), lambda: memcpy(memory[next(rows)], plain[next(rows)])
    )
    yield Result(f"load_{name}_over_memcpy", copying / loading, "x", _against(copying, nbytes, threads), at_least(0.9))
    storing, copying = median_times(
        ROUNDS,
        lambda: store(space.keys([next(NUMBERS)]), next(rows)),
        lambda: memcpy(memory[next(rows)], plain[next(rows)]),
    )
    yield Result(f"store_{name}_over_memcpy", copying / storing, "x", _against(copying, nbytes, threads), at_least(0.9))


def _against(seconds: float, nbytes: int, threads: str) -> str:
    return f"memcpy: {nbytes / seconds / 2**30:.1f} GiB/s; {threads}"


def measure() -> Iterator[Result]:
    """Measures with the client's own choice of threads, then with one."""
    with Stage("--arena-size", f"{ARENA_MIB}MiB") as stage:
        for threads, suffix in ((0, ""), (1, "_1_thread")):
            with Client(stage.socket, timeout=10, threads=threads) as client:
                assert client.wait_attached(120)
                settle()
                choice = "the client's own choice of threads" if not threads else "one thread"
                for name, nbytes in (("8mib", 8 * MIB), ("32mib", 32 * MIB)):
                    for result in copies(client, name, nbytes, choice):
                        yield result if not suffix else _reported(result, suffix)


def _reported(result: Result, suffix: str) -> Result:
    return Result(result.name + suffix, result.value, result.unit, result.against)


if __name__ == "__main__":
    main("Copying pages between host memory and the arena", measure)
