"""Commands on a terminal of a test's own."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence

import msgspec


class Shown(msgspec.Struct, frozen=True):
    """What a command wrote, as lines without their ends, and its exit code."""

    lines: list[str]
    code: int

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join(self.lines)


def pagetier_on_terminal(arguments: Sequence[str], columns: int = 80, typed: str = "") -> Shown:
    """Runs `pagetier` with a terminal of so many columns on all three descriptors."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-c", "from pagetier.daemon.cli import main; main()", *arguments]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**environ, "TERM": "xterm-256color"}
    ) as process:
        os.close(theirs)
        os.write(ours, typed.encode())
        text = _read_all(ours)
    os.close(ours)
    return Shown(text.replace("\r\n", "\n").splitlines(), process.returncode)


def _read_all(descriptor: int) -> str:
    data = b""
    while True:
        try:
            more = os.read(descriptor, 1 << 16)
        except OSError:  # so a terminal ends
            more = b""
        if not more:
            return data.decode()
        data += more
