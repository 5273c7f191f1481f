"""`pagetierd`: takes note of signals, then imports the daemon, which takes half a second on a slow machine."""

from __future__ import annotations

import os

from pagetier.daemon.stop_signals import EARLY, Reported


def start() -> None:
    """Runs the command."""
    # numpy would start a thread for each core, here and in the workers. None has work, and all wait actively at first.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with Reported(EARLY) as early:
        from pagetier.daemon.main import Invocation, main

        main(obj=Invocation(early))
