"""Waiting for a key, where there is somebody to press one."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any, Self

_ENDS = frozenset(b"qQ\x03\x04")


class Keys:
    """Reads single keys from the terminal on stdin until the end of the block; without one it only waits."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        if sys.stdin.isatty():
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def end_within(self, seconds: float) -> bool:
        """Whether somebody wants to end it, waited for so long."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            if self._before is None:
                time.sleep(left)
            elif select.select([sys.stdin], [], [], left)[0] and self._wants_end():
                return True
        return False

    def _wants_end(self) -> bool:
        pressed = os.read(sys.stdin.fileno(), 64)
        return not pressed or not _ENDS.isdisjoint(pressed)
