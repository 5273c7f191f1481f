"""Promises of a second, kept on a machine whose cores others have, too."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from running_daemon import RunningDaemon

_SECOND_S = 1.0
_OWN_STEPS_S = 0.5  # what the test does until it has seen that it is so


class Second:
    """The second that begins now. Longer by what threads of this process and of the daemon wait for a core in it."""

    def __init__(self, daemon: RunningDaemon) -> None:
        assert daemon.process is not None
        self._processes = (os.getpid(), daemon.process.pid)
        self._waits = self._waits_for_a_core()
        self._began = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether it has passed."""
        left = _SECOND_S + _OWN_STEPS_S + self._began - time.monotonic()
        return left < 0 and left + self._starved() < 0

    def sees(self, what: Callable[[], bool]) -> bool:
        """Whether it becomes true in time."""
        while not self.is_over:
            if what():
                return True
            time.sleep(0.005)
        return False

    def _starved(self) -> float:
        return sum(wait - self._waits.get(thread, 0) for thread, wait in self._waits_for_a_core().items()) / 1e9

    def _waits_for_a_core(self) -> dict[Path, int]:
        """Nanoseconds in which each thread was ready to run and did not."""
        waits = {}
        for process in self._processes:
            for thread in Path(f"/proc/{process}/task").glob("*/schedstat"):
                with suppress(OSError):  # it has just ended
                    waits[thread] = int(thread.read_text().split()[1])
        return waits
