"""Processor time of calls."""

from __future__ import annotations

import time
from collections.abc import Callable


def processor_s(work: Callable[[], object]) -> float:
    """Returns the processor time of this thread that the work takes."""
    began = time.thread_time()
    work()
    return time.thread_time() - began
