"""Makes SIGTERM end a command like Ctrl-C, together with the processes that it has started."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def exiting_on_sigterm() -> Iterator[None]:
    """Raises SystemExit with 128 and the signal's number at SIGTERM. Does nothing outside of the main thread."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
