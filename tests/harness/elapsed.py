"""Durations of calls: limits on the clock, and processor time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from eventually import Stopwatch


@contextmanager
def lasts(most: float, least: float = 0.0) -> Iterator[None]:
    """Asserts that the block takes at least `least` and less than `most` seconds."""
    watch = Stopwatch()
    yield
    assert least <= watch.seconds < most, f"{watch.seconds:.2f} s, not {least} to {most} s"


def processor_s(work: Callable[[], object]) -> float:
    """Returns the processor time of this thread that the work takes."""
    began = time.thread_time()
    work()
    return time.thread_time() - began
