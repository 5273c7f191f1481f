"""Signals that stop the daemon, handled from its first moment on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any, Self


class StopRequest(Enum):
    """How the daemon is to stop."""

    STOP = "the memory is released"
    HAND_OVER = "the pages stay in memory for the next daemon"


SIGNALS = {
    signal.SIGTERM: StopRequest.STOP,
    signal.SIGINT: StopRequest.STOP,
    signal.SIGUSR1: StopRequest.HAND_OVER,
}


def meant_by(way: StopRequest, keep_while: Path | None) -> StopRequest:
    """Returns the effective request: a stop is a hand-over while a file or folder exists at `keep_while`.

    A service manager sends SIGTERM for a stop and for a restart; it announces a restart by that file.
    """
    kept = way is StopRequest.STOP and keep_while is not None and keep_while.exists()
    return StopRequest.HAND_OVER if kept else way


class Reported:
    """Records stop signals while the daemon starts, until the event loop can handle them. For the main thread.

    As a context manager it installs its handlers, and restores the previous ones at the end.

    Blocking the signals would not work: a mask belongs to one thread, so the signal would be delivered to one of
    numpy's threads, and its default action ends the process.
    """

    def __init__(self) -> None:
        self._came: list[int] = []
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_to(self, leave: Callable[[StopRequest], None], loop: asyncio.AbstractEventLoop) -> None:
        """Calls `leave` in the loop for each signal from now on, and at once for those that were recorded."""
        for number, way in SIGNALS.items():
            loop.add_signal_handler(number, leave, way)
        for came in self._came:
            leave(SIGNALS[signal.Signals(came)])

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)
