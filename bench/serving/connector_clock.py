"""Measures the CPU time of a connector in a process that has an engine's scheduler and worker, by clocks of threads."""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

_OF_SCHEDULER = ("pagetier-ask", "pagetier-flush")


class ProcessorTime(msgspec.Struct, frozen=True):
    """CPU time since the start of an engine.

    Attributes:
        steps: Steps of the engine.
        process: Nanoseconds of all threads of the process.
        scheduler: Nanoseconds of the connector's methods in the scheduler, and of their threads.
        worker: The same in the worker. This includes the copying of bytes.
    """

    steps: int
    process: int
    scheduler: int
    worker: int

    def since(self, before: ProcessorTime) -> ProcessorTime:
        """Returns the difference."""
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(before), strict=True)
        return ProcessorTime(*(after - then for after, then in pairs))


class ConnectorClock:
    """Wraps all public methods of a connector's class. Threads are recognised by their names."""

    def __init__(self, connector: type) -> None:
        self._taken: Counter[str] = Counter()
        self._running = False
        for name in dir(connector):
            method = getattr(connector, name)
            if not name.startswith("_") and callable(method) and not hasattr(method, "__self__"):
                setattr(connector, name, self._timed(method))

    def read(self, steps: int) -> ProcessorTime:
        """Returns the time so far, after `steps` steps."""
        threads: Counter[str] = Counter()
        for thread in threading.enumerate():
            if thread.name.startswith("pagetier"):
                threads["SCHEDULER" if thread.name.startswith(_OF_SCHEDULER) else "WORKER"] += _nanoseconds(thread)
        taken = self._taken + threads
        return ProcessorTime(steps, time.process_time_ns(), taken["SCHEDULER"], taken["WORKER"])

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def timed(connector: Any, *arguments: Any, **named: Any) -> Any:
            if self._running:  # one method calls another
                return method(connector, *arguments, **named)
            self._running, began = True, time.thread_time_ns()
            try:
                return method(connector, *arguments, **named)
            finally:
                taken = time.thread_time_ns() - began  # before the name of a role is looked up, which takes a while
                self._running = False
                self._taken[connector.role.name] += taken

        return timed


def _nanoseconds(thread: threading.Thread) -> int:
    try:
        return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0])
    except OSError:
        return 0
