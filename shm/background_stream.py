"""A text stream that never waits for its reader: a thread of its own writes to the descriptor.

A terminal after Ctrl-S, a full pipe or a disk that hangs then cost log lines, and do not stop the process.
"""

from __future__ import annotations

import io
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TextIO

_MOST_BYTES: Final = 256 << 10  # that wait to be written
_PATIENCE_S: Final = 0.1
_LAST_S: Final = 1.0


class BackgroundStream(io.TextIOBase):
    """Writes text to the descriptor of another stream, in order. Thread-safe.

    write() returns when the text was written, so that a crash right after it loses nothing. If that takes longer than a
    tenth of a second, later calls return at once until all text was written. Text that does not fit into the queue, or
    that cannot be written, is left out. Its lines are counted and reported when text can be written again.

    Args:
        target: The stream that is replaced. Nothing else may write to it.
        report: Returns a line that says how many lines were left out.
        most: The bytes that may wait to be written.
    """

    def __init__(self, target: TextIO, report: Callable[[int], str], most: int = _MOST_BYTES) -> None:
        self._target = target
        self._report = report
        self._most = most
        self._changed = threading.Condition()
        self._queue = deque[bytes]()
        self._waiting = self._left_out = 0
        self._is_full = self._is_late = False
        threading.Thread(target=self._write_all, name="pagetier-log", daemon=True).start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the target."""
        return self._target.encoding

    @property
    def errors(self) -> str:  # type: ignore[override]
        """What replaces characters that the encoding lacks, as in Python's own stderr."""
        return "backslashreplace"

    def fileno(self) -> int:
        """Returns the descriptor of the target."""
        return self._target.fileno()

    def isatty(self) -> bool:
        """Returns whether the target is a terminal."""
        return self._target.isatty()

    def writable(self) -> bool:
        """Returns True."""
        return True

    def write(self, text: str) -> int:
        """Writes the text, or leaves it out. Waits for at most a tenth of a second."""
        data = text.encode(self.encoding, self.errors)
        with self._changed:
            if self._is_full or self._waiting + len(data) > self._most:
                self._is_full = True
                self._left_out += data.count(b"\n")
                return len(text)
            self._queue.append(data)
            self._waiting += len(data)
            self._changed.notify_all()
            if not self._is_late:
                self._is_late = not self._changed.wait_for(self._is_written, _PATIENCE_S)
        return len(text)

    def flush(self) -> None:
        """Does nothing: nothing is buffered that could be written earlier."""

    def finish(self) -> None:
        """Waits for at most a second until all text was written. For the end of the process."""
        with self._changed:
            self._changed.wait_for(self._is_written, _LAST_S)

    def _is_written(self) -> bool:
        return not self._waiting and not self._is_full

    def _write_all(self) -> None:
        while True:
            text, left_out = self._next()
            data = self._report(left_out).encode(self.encoding, self.errors) * bool(left_out) + text
            try:
                self._write(data)
            except (OSError, ValueError):  # a full disk, a terminal that is gone, a closed stream
                left_out += text.count(b"\n")
            else:
                left_out = 0
            self._note(len(text), left_out)

    def _next(self) -> tuple[bytes, int]:
        """Waits for text; returns it with the number of lines that were left out before it."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_full)
            text = self._queue.popleft() if self._queue else b""
            if self._is_full and text:  # the lines that were left out come after all that waits
                return text, 0
            left_out, self._left_out = self._left_out, 0
            return text, left_out

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self.fileno(), data) :]
            except BlockingIOError:  # another process has made the descriptor non-blocking
                poll = select.poll()
                poll.register(self.fileno(), select.POLLOUT)
                poll.poll()

    def _note(self, written: int, left_out: int) -> None:
        with self._changed:
            self._waiting -= written
            self._left_out += left_out
            self._is_full = self._is_full and written > 0
            if self._is_written():
                self._is_late = False
                self._changed.notify_all()
