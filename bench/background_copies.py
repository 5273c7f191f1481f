"""Copies that run continuously beside something else."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle

from pagetier.client.cli.calibrate.measure import CopyBatch
from pagetier.kernels.device import Event


@contextmanager
def copying(work: CopyBatch) -> Iterator[None]:
    """Copies continuously on a thread of its own, from the end of the first copy until the block ends."""
    begun, over = threading.Event(), threading.Event()
    failures: list[Exception] = []

    def run() -> None:
        try:
            _copy_until(work, begun, over)
        except (RuntimeError, ValueError) as error:
            failures.append(error)
        begun.set()

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    yield
    over.set()
    thread.join()
    if failures:
        raise failures[0]


def _copy_until(work: CopyBatch, begun: threading.Event, over: threading.Event) -> None:
    events: deque[Event] = deque()
    for copy in cycle(work.copies):
        if over.is_set():
            break
        work.stream.enqueue(copy)
        events.append(work.stream.record())
        if len(events) > 3 and events.popleft().wait(60):
            begun.set()
    for event in events:
        event.wait(60)
