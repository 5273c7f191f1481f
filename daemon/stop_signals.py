"""How the daemon is told to go, from its first moment on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any, Self


class StopRequest(Enum):
    """How the daemon was told to go."""

    STOP = "the memory is given back"
    HAND_OVER = "the pages stay for the next daemon"


SIGNALS = {
    signal.SIGTERM: StopRequest.STOP,
    signal.SIGINT: StopRequest.STOP,
    signal.SIGUSR1: StopRequest.HAND_OVER,
}


def meant_by(way: StopRequest, keep_while: Path | None) -> StopRequest:
    """What a word to go means: a stop is a hand-over while there is a file or folder at `keep_while`.

    A service manager says SIGTERM whatever it is going to do next; what that is, it says by what it leaves there.
    """
    kept = way is StopRequest.STOP and keep_while is not None and keep_while.exists()
    return StopRequest.HAND_OVER if kept else way


class Told:
    """Signals that come while things are made, for when there is somebody to tidy them up. In the main thread.

    As a context manager it notes what comes, and ends as it found things.

    A blocked mask would not do: it is a thread's own, and numpy's threads, which block nothing, would be given the
    signal, whose default is the end of the process.
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
        """Calls `leave` in the loop for each that comes, and at once for those that came."""
        for number, way in SIGNALS.items():
            loop.add_signal_handler(number, leave, way)
        for came in self._came:
            leave(SIGNALS[signal.Signals(came)])

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)
