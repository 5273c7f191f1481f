"""An engine that works while the fleet fails: it times each call and checks the bytes of each page that it loads."""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType
from typing import Self

import numpy as np

from eventually import CoreWaits
from fleet_host import FleetHost, Pages, keys_of, pages_of
from pagetier.client import Client

CALL_S = 0.5
SLACK_S = 0.1
_PAUSE_S = 0.05
_BEAT_S = 0.005


class TimedEngine:
    """A thread that loads pages of its host and pages of the fleet and stores new ones, while the context lasts.

    Args:
        host: The host, on which the pages "near" are in memory.
        near: These pages.
        far: The name of chains of one page, `far`-0, `far`-1 and so on, that only the fleet has. Each is loaded
            until it is found.
        content: The page of each of these chains.

    Attributes:
        near_misses: Pages of the host that a load did not find.
        waits: The number of the page and the seconds of each load of a fleet's page that did not find it, without
            those in which the thread of the engine or the daemon that waited longest for a core did so.
        far_loaded: How many pages of the fleet were loaded.
    """

    def __init__(self, host: FleetHost, near: Pages, far: str, content: Pages) -> None:
        self._host = host
        self._near, self._far, self._content = near, far, content
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._work), threading.Thread(target=self._beat)]
        self._longest, self._starved = 0.0, 0.0
        self._error: BaseException | None = None
        self.near_misses, self.far_loaded = 0, 0
        self.waits: list[tuple[int, float]] = []

    def assert_in_time(self) -> None:
        """Asserts that no call took longer than its timeout and 100 ms, beside what the machine kept three threads."""
        assert self._longest <= CALL_S + SLACK_S + 3 * self._starved, (self._longest, self._starved)

    def _beat(self) -> None:
        """Measures for how long a thread that does nothing waits for a core."""
        while not self._end.is_set():
            began = time.monotonic()
            time.sleep(_BEAT_S)
            self._starved = max(self._starved, time.monotonic() - began - _BEAT_S)

    def _work(self) -> None:
        try:
            with self._host.daemon.client(timeout=CALL_S) as client:
                while not self._end.wait(_PAUSE_S):
                    self._step(client, self.far_loaded)
        except BaseException as error:  # noqa: BLE001  raised in the test's thread
            self._error = error

    def _step(self, client: Client, number: int) -> None:
        seconds, loaded, out = self._load(client, "near", *self._near.shape)
        self.near_misses += len(self._near) - loaded
        assert np.array_equal(out[:loaded], self._near[:loaded])
        seconds, loaded, out = self._load(client, f"{self._far}-{number}", 1, self._content.shape[1])
        if loaded:
            assert np.array_equal(out, self._content)
            self.far_loaded += 1
        else:
            self.waits.append((number, seconds))
        keys, pages = keys_of(f"{self._far} new {number} {len(self.waits)}", 1), pages_of(1, 1000)
        began = time.monotonic()
        client.store(keys, pages)
        self._longest = max(self._longest, time.monotonic() - began)

    def _load(self, client: Client, name: str, count: int, size: int) -> tuple[float, int, Pages]:
        out = np.zeros((count, size), np.uint8)
        waits, began = CoreWaits(os.getpid(), self._host.daemon.pid), time.monotonic()
        with client.match(keys_of(name, count)) as match:
            loaded = client.load(match, out)
        seconds = time.monotonic() - began
        self._longest = max(self._longest, seconds)
        return seconds - max(waits.of_threads(), default=0.0), loaded, out

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        if self._error is not None and error is None:
            raise self._error
