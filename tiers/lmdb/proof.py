"""Proves a data file at rest, by reading: nothing in the file can crash it, and LMDB opens it only if it is sound.

It is the program of a process of its own, which can be killed, and which dies with its parent.
"""

from __future__ import annotations

import os
import signal
import sys

from lmdb.verify import VerifyError, verify

from pagetier.shm.process import die_with_parent
from pagetier.tiers.lmdb.count import miscounted


def fault(data: str) -> str:
    """Returns why a data file cannot be trusted, or "". Raises lmdb.Error if LMDB refuses to open a sound file."""
    try:
        found = verify(data, subdir=False)  # type: ignore[no-untyped-call]
    except (VerifyError, OSError) as error:
        found = [str(error)]
    return (found[0] or "it is unsound") if found else miscounted(data)


def main() -> None:
    """Exits with the fault of the data file that the command line names, after it the process ID of the parent."""
    data, parent = sys.argv[1:]
    die_with_parent()
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)  # the parent limits its processor time
    if os.getppid() != int(parent):  # it was gone before the line above
        sys.exit("the parent process is gone")
    sys.exit(fault(data) or 0)


if __name__ == "__main__":
    main()
