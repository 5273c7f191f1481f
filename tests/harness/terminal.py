"""Runs commands on a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from typing import Self

import msgspec

from eventually import PATIENCE_S, Stopwatch


class Shown(msgspec.Struct, frozen=True):
    """The lines that a command wrote, without line ends, and its exit code."""

    lines: list[str]
    code: int

    @property
    def text(self) -> str:
        """The lines joined."""
        return "\n".join(self.lines)


def pagetier_on_terminal(arguments: Sequence[str], columns: int = 80, typed: str = "") -> Shown:
    """Runs `pagetier` with a terminal of this width on all three descriptors."""
    with LiveTerminal(arguments, columns) as live:
        live.type(typed)
        code = live.wait()
        return Shown(live.text.replace("\r\n", "\n").splitlines(), code)


class LiveTerminal:
    """Runs `pagetier` on a terminal until the end of the block, and reads its output."""

    def __init__(self, arguments: Sequence[str], columns: int = 80, kind: str = "xterm-256color") -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        environ |= {"TERM": kind, "PYTHONIOENCODING": "utf-8"}
        command = [sys.executable, "-c", "from pagetier.daemon.cli import main; main()", *arguments]
        self._process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ)
        os.close(theirs)
        self._data = b""

    @property
    def text(self) -> str:
        """The output so far."""
        return self._data.decode(errors="replace")

    @property
    def seen(self) -> int:
        """The length of the output so far."""
        return len(self.text)

    def until(self, words: str, beyond: int = 0, seconds: float = PATIENCE_S) -> bool:
        """Returns whether these words appear in time, after the first `beyond` characters."""
        watch = Stopwatch()
        while words not in self.text[beyond:]:
            if (left := seconds - watch.seconds) < 0 or not self._read(left):
                return False
        return True

    def type(self, keys: str) -> None:
        """Types keys."""
        os.write(self._ours, keys.encode())

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self._process.terminate()

    def wait(self) -> int:
        """Reads the rest of the output and returns the exit code."""
        while self._read(PATIENCE_S):
            pass
        return self._process.wait(PATIENCE_S)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        try:
            more = os.read(self._ours, 1 << 16)
        except OSError:  # the end of a terminal
            return False
        self._data += more
        return bool(more)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)
