"""Reads the keys that end `pagetier top`."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from types import TracebackType
from typing import Any, Self

from pagetier.shm import clock

_QUIT_KEYS = frozenset(b"qQ\x03\x04")


class KeyReader:
    """Reads single keys from the terminal on stdin inside of a `with` block. Without a terminal it only waits."""

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

    def quits_within(self, seconds: float) -> bool:
        """Waits for this time. Returns whether the user quit."""
        deadline = clock.Deadline(seconds)
        while left := deadline.left:
            if self._before is None:
                clock.sleep(left)
            elif select.select([sys.stdin], [], [], left)[0] and self._is_quit_pressed():
                return True
        return False

    def _is_quit_pressed(self) -> bool:
        pressed = os.read(sys.stdin.fileno(), 64)
        return not pressed or not _QUIT_KEYS.isdisjoint(pressed)
