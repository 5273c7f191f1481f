"""Memory that a simulated driver pins in small chunks."""

from __future__ import annotations

from fake_pinning_driver import PinningDriver
from pagetier.kernels.pinning.pinning import Pinning

SMALL = 4 << 10
BASE = 1 << 30


def pinning(driver: PinningDriver, nbytes: int, chunk: int = SMALL, threads: int = 4) -> Pinning:
    return Pinning(BASE, nbytes, driver.register, driver.unregister, chunk, threads)


def ready_chunks(pinned: Pinning, count: int) -> list[bool]:
    return [pinned.ready(at * SMALL, SMALL) for at in range(count)]
