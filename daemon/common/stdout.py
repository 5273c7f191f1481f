"""Output that nobody takes: a full disk behind `>`, say. One line and exit code 1, and no traceback.

And output that has no letters for a name: there is a question mark in their place.
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

# a file that is opened, and can not be, has a name; commands write to nothing but stdout
_OF_WRITING: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE})


@contextlib.contextmanager
def told_if_not_written() -> Iterator[None]:
    """Ends the process where stdout can not be written to; without a word where that is a pipe whose reader left."""
    have_stderr()
    if sys.stdout is None:
        end_without_stdout()
    _replace_what_it_lacks()
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in _OF_WRITING or error.filename is not None:
            raise
        _forget_the_rest()
        if error.errno != errno.EPIPE:
            sys.stderr.write(f"Error: the output could not be written: {error.strerror}\n")
        sys.exit(Exit.WRONG)


def have_stderr() -> None:
    """Where there is none, the shell's 2>&-, errors go nowhere: click would write them to stdout."""
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  to the end of the process


def end_without_stdout() -> NoReturn:
    """Where somebody wants to be told something, and there is none: the shell's >&-."""
    sys.stderr.write("Error: there is no standard output\n")
    sys.exit(Exit.WRONG)


def _replace_what_it_lacks() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def _forget_the_rest() -> None:
    """What Python still holds would be written, and fail, when it ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
