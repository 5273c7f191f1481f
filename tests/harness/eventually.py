"""The only clock of the tests: waits for conditions, pauses, and durations for reports.

A test that asks how long something took fails on a busy machine, so a limit here is only far too long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from running_daemon import RunningDaemon

_T = TypeVar("_T")
_SHORTEST_S, _LONGEST_S = 0.005, 0.02  # between two checks: a wait of a second or more must not keep a core busy
_SECOND_S = 1.0
PATIENCE_S: Final = 60.0
"""Far longer than anything takes, on a busy machine too: the limit of all that is to come."""
_STALL_S = 0.05
_OWN_STEPS_S = 0.5  # the steps of the test until it sees the result


class Stopwatch:
    """Measures the time since now, for a report or for a wait that cannot be one for a condition."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return time.monotonic() - self._began


def pace(seconds: float = _SHORTEST_S) -> None:
    """Gives simulated work its pace, or rests between two looks. No result depends on how long it takes."""
    time.sleep(seconds)


def pause(seconds: float) -> None:
    """Sleeps where the result depends on that: only for tests with the mark `wall_clock`."""
    time.sleep(seconds)


def eventually(what: Callable[[], _T], seconds: float = PATIENCE_S) -> _T:
    """Returns the first true result of a function, or its last one when the time has passed."""
    watch, rest = Stopwatch(), _SHORTEST_S
    while not (result := what()) and watch.seconds <= seconds:
        pace(rest)
        rest = min(_LONGEST_S, 1.05 * rest)
    return result


class CoreWaits:
    """The time since now in which the threads of some processes were ready to run but did not run.

    `others` returns more processes, which may come and go.
    """

    def __init__(self, *processes: int, others: Callable[[], Iterable[int]] = tuple) -> None:
        self._processes = processes
        self._others = others
        self._before = self._nanoseconds()

    def of_threads(self) -> list[float]:
        """Returns the seconds of each thread."""
        return [(wait - self._before.get(thread, 0)) / 1e9 for thread, wait in self._nanoseconds().items()]

    def _nanoseconds(self) -> dict[Path, int]:
        """Returns the nanoseconds of each thread since its start."""
        waits = {}
        for process in (*self._processes, *self._others()):
            with suppress(OSError):  # the process has just ended: Path.glob() may raise then, too
                for thread in Path(f"/proc/{process}/task").iterdir():
                    with suppress(OSError):  # the thread has just ended
                        waits[thread] = int((thread / "schedstat").read_text().split()[1])
        return waits


def eventually_with_cores(what: Callable[[], _T], seconds: float, waits: CoreWaits) -> _T:
    """Returns as eventually() does. The time in which the processes waited for a core does not count."""
    watch = Stopwatch()
    result = eventually(what, seconds)
    while not result and watch.seconds - sum(waits.of_threads()) <= seconds:
        pace(_LONGEST_S)
        result = what()
    return result


class Second:
    """A second that begins now, prolonged by the time that threads of this process and the daemon wait for a core.

    `others` are more processes that the result needs. A time in which the whole machine stands still prolongs it, too.
    """

    def __init__(self, daemon: RunningDaemon, *others: int) -> None:
        self._waits = CoreWaits(os.getpid(), daemon.pid, *others)
        self._stalled_s = 0.0
        self._watch = Stopwatch()

    @property
    def is_over(self) -> bool:
        """Returns whether the second has passed."""
        left = _SECOND_S + _OWN_STEPS_S - self._watch.seconds
        return left < 0 and left + max(self._stalled_s, sum(self._waits.of_threads())) < 0

    def sees(self, what: Callable[[], bool]) -> bool:
        """Returns whether a condition becomes true in time."""
        while not self.is_over:
            if what():
                return True
            self._pause()
        return False

    def _pause(self) -> None:
        """Sleeps for a moment. A sleep that lasts far longer shows that this process could not run, for any reason."""
        watch = Stopwatch()
        pace()
        late = watch.seconds - _SHORTEST_S
        self._stalled_s += late if late > _STALL_S else 0.0
