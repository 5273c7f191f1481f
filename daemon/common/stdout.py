"""Handles failures of stdout: one line and exit code 1 instead of a traceback, for example on a full disk.

Characters that stdout's encoding lacks are replaced by question marks.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

from pagetier.daemon.common.exit_codes import Exit

# Errors of open() have a file name, errors of write() have none. Commands write to nothing but stdout.
_WRITE_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE})


@contextlib.contextmanager
def exit_if_stdout_fails() -> Iterator[None]:
    """Ends the process with exit code 1 if stdout cannot be written, silently if it is a pipe whose reader left."""
    have_stderr()
    if sys.stdout is None:
        end_without_stdout()
    _replace_unencodable_characters()
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in _WRITE_ERRORS or error.filename is not None:
            raise
        _discard_buffer()
        if error.errno != errno.EPIPE:
            sys.stderr.write(f"Error: the output could not be written: {error.strerror}\n")
        sys.exit(Exit.WRONG)


def have_stderr() -> None:
    """Opens /dev/null as stderr if there is none (the shell's 2>&-): click would write errors to stdout."""
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  open until the process ends


def end_without_stdout() -> NoReturn:
    """Ends the process because output was requested, but there is no stdout (the shell's >&-)."""
    sys.stderr.write("Error: there is no standard output\n")
    sys.exit(Exit.WRONG)


def _replace_unencodable_characters() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def _discard_buffer() -> None:
    """Redirects stdout to /dev/null, since Python writes its buffer at exit and would fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
