"""`pagetierd`: takes note of signals, then imports the daemon, which takes half a second on a slow machine."""

from __future__ import annotations

from pagetier.daemon.stop_signals import EARLY, Reported


def start() -> None:
    """Runs the command."""
    with Reported(EARLY) as early:
        from pagetier.daemon.main import Invocation, main

        main(obj=Invocation(early))
