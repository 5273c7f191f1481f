"""An honest engine that works beside adversarial ones and records how it was served."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
import numpy as np

from oracle.page_contents import content, wrong
from pagetier.client import Client
from running_daemon import namespace

PAGES: Final = 4
TIMEOUT_S: Final = 10.0
_REST_S: Final = 0.002


class Served(msgspec.Struct):
    """The service that the engine got.

    Attributes:
        worst_s: The longest duration of a store, match or load, in seconds.
        wrong: The number of pages with other bytes, which must be 0.
    """

    rounds: int = 0
    stored: int = 0
    refused: int = 0
    loaded: int = 0
    wrong: int = 0
    worst_s: float = 0.0
    reason: str = ""


class Honest:
    """An engine that stores, matches and loads prompts one by one, within a context; `served` has the result."""

    def __init__(self, socket: Path, page_bytes: int, seed: int = 1) -> None:
        self.served = Served()
        self.client = Client(socket, name="honest", timeout=TIMEOUT_S)
        self._bytes = page_bytes
        self._seed = seed
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="honest")

    def wait_for(self, rounds: int, seconds: float = 60.0) -> bool:
        """Waits until it has done this many more rounds; returns False after the timeout."""
        wanted, ends = self.served.rounds + rounds, time.monotonic() + seconds
        while self.served.rounds < wanted and time.monotonic() < ends:
            time.sleep(0.01)
        return self.served.rounds >= wanted

    def __enter__(self) -> Self:
        assert self.client.wait_attached(20)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._thread.join()
        self.client.close()

    def _run(self) -> None:
        while not self._ends.is_set():
            began = time.monotonic()
            self._round(self.served.rounds)
            self.served.worst_s = max(self.served.worst_s, time.monotonic() - began)
            self.served.rounds += 1
            time.sleep(_REST_S)

    def _round(self, number: int) -> None:
        keys = namespace(salt=f"honest {number % 8}").keys(range(number, number + 16 * PAGES))
        pages = [content(keys[page], self._seed, self._bytes) for page in range(PAGES)]
        result = self.client.store(keys, pages)
        self.served.stored += result.stored
        self.served.refused += result.refused
        self.served.reason = result.reason or self.served.reason
        with self.client.match(keys) as match:
            out = np.zeros((len(match), self._bytes), np.uint8)
            done = self.client.load(match, out) if len(match) else 0
        self.served.loaded += done
        self.served.wrong += sum(wrong(out[page], keys[page], self._seed) is not None for page in range(done))
