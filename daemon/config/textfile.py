"""Text of a file that an administrator named: read at once or refused, whatever is at its path."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 1 << 20


class NoTextFileError(Exception):
    """There is something at the path that is not read; the message says what."""


def text_of(path: Path) -> str:
    """The whole text. Raises NoTextFileError, OSError, UnicodeDecodeError.

    A running daemon reads so, too: a FIFO would have it wait for a writer, and a device has no end.
    """
    with open(path, "rb", opener=_open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise NoTextFileError("no regular file")
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise NoTextFileError(f"too large: at most {MOST_BYTES >> 20} MiB")
    return content.decode()


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
