"""How fast pages go between host memory and the arena, through the client, over memcpy in the same process."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from measure import Result, at_least, main, median_times
from pagetier.client import Client, Namespace
from stage import Stage, settle

MIB = 1 << 20
ROUNDS = 60
ARENA_MIB = 1024
NUMBERS = itertools.count()

Bytes = npt.NDArray[np.uint8]


def warm(nbytes: int) -> Bytes:
    """Memory that was touched: the first touch is not what is measured."""
    return np.random.default_rng(5).integers(0, 256, nbytes, dtype=np.uint8)


def memcpy(to: Bytes, source: Bytes) -> None:
    """The C library's, without anything around it."""
    ctypes.memmove(to.ctypes.data, source.ctypes.data, source.nbytes)


def copies(client: Client, name: str, nbytes: int, threads: str) -> Iterator[Result]:
    """Store and load of one page, beside memcpy of as many bytes, taken in turn."""
    space = Namespace(model="bench", dtype="none", page_tokens=1)
    source, into = warm(nbytes), warm(nbytes)
    stored = space.keys([next(NUMBERS)])
    assert client.store(stored, source).stored == 1

    def store() -> None:
        assert client.store(space.keys([next(NUMBERS)]), source).stored == 1

    def load() -> None:
        with client.match(stored) as match:
            assert client.load(match, into) == 1

    for _ in range(4 * ARENA_MIB * MIB // nbytes // 3):  # every frame of the arena is touched by this process
        store()
        load()
    plain, storing, loading = median_times(ROUNDS, lambda: memcpy(into, source), store, load)
    against = f"memcpy: {nbytes / plain / 2**30:.1f} GiB/s; {threads}"
    yield Result(f"store_{name}_over_memcpy", plain / storing, "x", against, at_least(0.9))
    yield Result(f"load_{name}_over_memcpy", plain / loading, "x", against, at_least(0.9))
    assert np.array_equal(source, into)


def measure() -> Iterator[Result]:
    """With as many threads as the client takes by itself, then with one."""
    with Stage("--arena-size", f"{ARENA_MIB}MiB") as stage:
        for threads, suffix in ((0, ""), (1, "_1_thread")):
            with Client(stage.socket, deadline=10, threads=threads) as client:
                assert client.wait_attached(120)
                settle()
                told = "the client's own choice of threads" if not threads else "one thread"
                for name, nbytes in (("8mib", 8 * MIB), ("32mib", 32 * MIB)):
                    for result in copies(client, name, nbytes, told):
                        yield result if not suffix else _reported(result, suffix)


def _reported(result: Result, suffix: str) -> Result:
    return Result(result.name + suffix, result.value, result.unit, result.against)


if __name__ == "__main__":
    main("Copying pages between host memory and the arena", measure)
