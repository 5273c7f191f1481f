"""Starts threads beside the calling one, as far as the limits of the host allow."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress


def start_helpers(threads: ThreadPoolExecutor, call: Callable[[], None], most: int) -> list[Future[None]]:
    """Starts a call on so many threads, or on fewer if a limit (TasksMax, RLIMIT_NPROC) refuses more."""
    helpers: list[Future[None]] = []
    with suppress(RuntimeError):  # "can't start new thread"
        for _ in range(most):
            helpers.append(threads.submit(call))
    return helpers
