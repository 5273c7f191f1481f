"""`pagetier stats`."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from pagetier.daemon.cli.connect import daemon_at, socket_option
from pagetier.daemon.cli.snapshot import Snapshot, take_snapshot


@click.command()
@socket_option
@click.option("--json", "show", flag_value="json", help="Print one JSON object instead of tables.")
def stats(socket: Path, show: str | None) -> None:
    """Show the contents of the cache and how it is used.

    Counters start when the segments are created, and continue over restarts of the daemon.

    Exit codes: 0: success; 3: no daemon.
    """
    with daemon_at(socket) as daemon:
        snapshot = take_snapshot(daemon.observer)
    if show == "json":
        # bytes, since JSON is UTF-8 even if the terminal is not
        click.echo(msgspec.json.format(msgspec.json.encode(snapshot), indent=2))
    else:
        _show_tables(snapshot, socket)


def _show_tables(snapshot: Snapshot, socket: Path) -> None:
    from pagetier.daemon.cli.render import show_snapshot

    show_snapshot(snapshot, socket)
