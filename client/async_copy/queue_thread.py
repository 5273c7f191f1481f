"""The thread of a lane."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

from pagetier.client.async_copy.stream_queue import Lane

Drive: TypeAlias = Callable[[Lane, str], object]
"""Sees to it that a lane's step() is called, under some name, until the lane is over."""


def in_thread(lane: Lane, name: str) -> threading.Thread:
    """A thread of its own, which ends when the lane is over, or with the process."""
    thread = threading.Thread(target=_run, args=(lane,), name=name, daemon=True)
    thread.start()
    return thread


def _run(lane: Lane) -> None:
    reason = "the thread that copies has ended"
    try:
        pause = lane.step()
        while not lane.over:
            lane.rest(pause)
            pause = lane.step()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise
    finally:
        if not lane.over:
            lane.abort(reason)
