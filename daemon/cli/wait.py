"""`pagetier wait`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from pagetier.daemon.cli.daemon_connection import Unreachable, daemon_at, socket_option, timeout_option
from pagetier.daemon.stats.snapshot_reader import take_snapshot
from pagetier.daemon.status.phase import Phase
from pagetier.shm import clock

_PAUSE_S: Final = 0.1


@click.command()
@socket_option
@timeout_option("60s", "How long to wait; 0s asks once.")
def wait(socket: Path, timeout: float) -> None:
    """Wait until engines can attach to the daemon.

    For scripts and probes. Prints nothing if the daemon serves, else why it does not.

    Exit codes: 0: engines can attach; 3: they cannot within the time.
    """
    _wait(socket, clock.Deadline(timeout))


def _wait(socket: Path, deadline: clock.Deadline) -> None:
    while why := _why_not(socket):
        if deadline.is_over:
            raise Unreachable(why)
        clock.sleep(min(_PAUSE_S, deadline.left))


def _why_not(socket: Path) -> str:
    """Returns why engines cannot attach; "" if they can."""
    try:
        with daemon_at(socket) as daemon:
            found = take_snapshot(daemon.observer).daemon
    except Unreachable as error:
        return error.message
    return "" if found.phase is Phase.SERVING else f"the daemon on {socket} is {found.phase_text}"
