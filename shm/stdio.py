"""Makes a process independent of a stdout or stderr that is closed or cannot be written to.

A stderr that is lost never changes an exit code. A stdout that is lost ends a command with exit code 1 and one line
instead of a traceback, for example on a full disk; a process that writes nothing to stdout does not notice.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Final, TextIO

from pagetier.shm.exit_codes import Exit

# Errors of open() have a file name, errors of write() have none. Commands write to nothing but stdout.
_WRITE_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE, errno.EBADF})


def settle_stdio() -> None:
    """Replaces streams that the shell closed (>&- and 2>&-): writes to stdout then fail, those to stderr are lost."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _fill_free_descriptors()
    if sys.stdout is None:
        sys.stdout = _null(os.O_RDONLY)
    if sys.stderr is None:  # without one, click would write errors to stdout
        sys.stderr = _null(os.O_WRONLY)
    atexit.register(_flush_or_discard_stderr)


@contextlib.contextmanager
def exit_if_stdout_fails() -> Iterator[None]:
    """Ends the process with exit code 1 if stdout cannot be written, silently if it is a pipe whose reader left."""
    settle_stdio()
    # Question marks replace characters that the encoding lacks: the name of an engine must not end a command.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in _WRITE_ERRORS or error.filename is not None:
            raise
        _discard_buffer(sys.stdout)
        if error.errno != errno.EPIPE:
            sys.stderr.write(f"Error: the output could not be written: {error.strerror}\n")
        sys.exit(Exit.WRONG)


def _fill_free_descriptors() -> None:
    """Opens /dev/null at descriptors 0 to 2 that are free: what C prints to them must never end in a segment."""
    while (descriptor := os.open(os.devnull, os.O_WRONLY)) <= 2:
        pass
    os.close(descriptor)


def _null(flags: int) -> TextIO:
    return os.fdopen(os.open(os.devnull, flags), "w")


def _flush_or_discard_stderr() -> None:
    try:
        sys.stderr.flush()
    except OSError:
        _discard_buffer(sys.stderr)
    except ValueError:  # already closed
        pass


def _discard_buffer(stream: TextIO) -> None:
    """Redirects a stream to /dev/null, since Python would fail to flush it again at exit and change the exit code."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
