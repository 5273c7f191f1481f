"""Signals to the daemon, handled from its first moment on. Imports little, since they may come at once."""

from __future__ import annotations

import signal
from enum import Enum
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import FrameType


class StopRequest(Enum):
    """How the daemon is to stop."""

    STOP = "the memory is released"
    HAND_OVER = "the pages stay in memory for the next daemon"


SIGNALS = {
    signal.SIGTERM: StopRequest.STOP,
    signal.SIGINT: StopRequest.STOP,
    signal.SIGUSR1: StopRequest.HAND_OVER,
}
# Signals that would end the process before it has read its configuration, and must not. SIGTERM and SIGINT may do so.
EARLY = (signal.SIGHUP, signal.SIGUSR1)


def meant_by(request: StopRequest, keep_while: Path | None) -> StopRequest:
    """Returns the effective request: a stop is a hand-over while a file or folder exists at `keep_while`.

    A service manager sends SIGTERM for a stop and for a restart; it announces a restart by that file.
    """
    kept = request is StopRequest.STOP and keep_while is not None and keep_while.exists()
    return StopRequest.HAND_OVER if kept else request


class Reported:
    """Records signals while the daemon starts, until the event loop can handle them. For the main thread.

    As a context manager it installs its handlers, and restores the previous ones at the end.

    Blocking the signals would not work: a mask belongs to one thread, so the signal would be delivered to one of
    numpy's threads, and its default action ends the process. Ignoring SIGHUP would lose a reload.

    Args:
        numbers: The signals; all that the daemon handles without them.
        earlier: What recorded signals until now.
    """

    def __init__(
        self, numbers: Iterable[signal.Signals] = (signal.SIGHUP, *SIGNALS), earlier: Reported | None = None
    ) -> None:
        self._numbers = tuple(numbers)
        self._came: list[int] = earlier._came if earlier is not None else []
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in self._numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_to(
        self, leave: Callable[[StopRequest], None], reload: Callable[[], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Calls one of both in the loop for each signal from now on, and at once for those that were recorded."""
        loop.add_signal_handler(signal.SIGHUP, reload)
        for number, request in SIGNALS.items():
            loop.add_signal_handler(number, leave, request)
        for came in map(signal.Signals, self._came):
            reload() if came is signal.SIGHUP else leave(SIGNALS[came])

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)
