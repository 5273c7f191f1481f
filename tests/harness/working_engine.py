"""An engine that works while the fleet fails, and checks the bytes of each page that it loads."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import numpy as np

from eventually import eventually
from fleet_host import FleetHost, Pages, keys_of, pages_of
from pagetier.client import Client

_CALL_S = 0.5
_PAUSE_S = 0.05
_ROUNDS = 20


class WorkingEngine:
    """A thread that loads pages of its host and pages of the fleet and stores new ones, while the context lasts.

    Args:
        host: The host, on which the pages "near" are in memory.
        near: These pages.
        far: The name of chains of one page, `far`-0, `far`-1 and so on, that only the fleet has. Each is loaded
            until it is found.
        content: The page of each of these chains.

    Attributes:
        rounds: How often it has loaded and stored.
        near_misses: Pages of the host that a load did not find.
        far_loaded: How many pages of the fleet were loaded.
    """

    def __init__(self, host: FleetHost, near: Pages, far: str, content: Pages) -> None:
        self._host = host
        self._near, self._far, self._content = near, far, content
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._error: BaseException | None = None
        self.rounds = self.near_misses = self.far_loaded = 0

    def goes_on(self) -> bool:
        """Waits until it has done many more rounds: no call waits for ever for what has failed."""
        wanted = self.rounds + _ROUNDS
        return eventually(lambda: self.rounds >= wanted)

    def loads_far(self, more: int = 1) -> bool:
        """Waits until it has loaded so many more pages of the fleet."""
        wanted = self.far_loaded + more
        return eventually(lambda: self.far_loaded >= wanted)

    def _work(self) -> None:
        try:
            with self._host.daemon.client(timeout=_CALL_S) as client:
                while not self._end.wait(_PAUSE_S):
                    self._step(client, self.far_loaded)
        except BaseException as error:  # noqa: BLE001  raised in the test's thread
            self._error = error

    def _step(self, client: Client, number: int) -> None:
        self.near_misses += len(self._near) - self._load(client, "near", self._near)
        self.far_loaded += self._load(client, f"{self._far}-{number}", self._content)
        client.store(keys_of(f"{self._far} new {self.rounds}", 1), pages_of(1, 1000))
        self.rounds += 1

    def _load(self, client: Client, name: str, content: Pages) -> int:
        out = np.zeros_like(content)
        with client.match(keys_of(name, len(content))) as match:
            loaded = client.load(match, out)
        assert np.array_equal(out[:loaded], content[:loaded])
        return loaded

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error
