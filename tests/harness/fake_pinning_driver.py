"""A simulated driver that pins memory, records wrong calls, and may let the test decide how a call ends."""

from __future__ import annotations

import threading

from eventually import PATIENCE_S
from pagetier.kernels.pinning.pinning import Pinning

SMALL = 4 << 10
BASE = 1 << 30


class PinningDriver:
    """Registers and unregisters memory.

    Attributes:
        wrong: A line for each call that a real driver would reject.
        unpins: Calls of unregister() wait while it is cleared.
        fails: The numbers of the calls of register() that fail.
    """

    def __init__(self, fails: tuple[int, ...] = ()) -> None:
        self.fails, self.unpins = fails, threading.Event()
        self.unpins.set()
        self.lock = threading.Lock()
        self.registered: dict[int, int] = {}
        self.began: list[int] = []
        self.wrong: list[str] = []
        self.at_once = self.most_at_once = 0

    def register(self, address: int, nbytes: int) -> None:
        """Pins memory. Raises an error as a driver does."""
        with self.lock:
            number = len(self.began)
            self.began.append(address)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.decide(number, address)
            with self.lock:
                self._add(address, nbytes)
        finally:
            with self.lock:
                self.at_once -= 1

    def decide(self, number: int, address: int) -> None:
        """Raises OSError if this call is to fail."""
        if number in self.fails:
            raise OSError(12, "Cannot allocate memory")

    def unregister(self, address: int) -> None:
        """Unpins the memory that was pinned by one call."""
        assert self.unpins.wait(PATIENCE_S)
        with self.lock:
            if self.registered.pop(address, None) is None:
                self.wrong.append(f"{address:#x} is not registered")

    def _add(self, address: int, nbytes: int) -> None:
        for begin, size in self.registered.items():
            if address < begin + size and begin < address + nbytes:
                self.wrong.append(f"{address:#x} is registered already")
        if nbytes < 1:
            self.wrong.append(f"{nbytes} bytes at {address:#x}")
        self.registered[address] = nbytes


class GatedDriver(PinningDriver):
    """A driver whose calls of register() wait until let() decides their result."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self._ends: dict[int, str] = {}
        self.waiting: list[int] = []

    def decide(self, number: int, address: int) -> None:
        """Waits for let(). Raises OSError if let() has an error."""
        with self._changed:
            self.waiting.append(address)
            assert self._changed.wait_for(lambda: address in self._ends, PATIENCE_S)
            self.waiting.remove(address)
        if self._ends[address]:
            raise RuntimeError(self._ends[address])

    def let(self, address: int, error: str = "") -> None:
        """Ends the waiting call for this address, with an error unless it is ""."""
        with self._changed:
            self._ends[address] = error
            self._changed.notify_all()


def pinning(driver: PinningDriver, nbytes: int, chunk: int = SMALL, threads: int = 4) -> Pinning:
    """Pins memory at BASE in small chunks."""
    return Pinning(BASE, nbytes, driver.register, driver.unregister, chunk, threads)


def ready_chunks(pinned: Pinning, count: int) -> list[bool]:
    return [pinned.ready(at * SMALL, SMALL) for at in range(count)]
