"""`pagetier reclaim`."""

from __future__ import annotations

from pathlib import Path

import click

from pagetier.daemon.cli.confirmation import confirm
from pagetier.daemon.cli.daemon_connection import Daemon, daemon_at, socket_option
from pagetier.daemon.cli.number_types import WholeNumber
from pagetier.daemon.host.peer_credentials import Rights
from pagetier.daemon.stats.snapshot import Snapshot
from pagetier.daemon.stats.snapshot_reader import take_snapshot
from pagetier.shm.protocol import Reclaim, Reclaimed

_RISK = (
    "slot {slot} ({engine}): its pages, pins and reserved memory become free. If its process still runs, it loads other"
    " bytes than were stored, and writes into pages of other engines: first end its container or its process"
)


@click.command()
@click.argument("slot", type=WholeNumber(0))
@socket_option
@click.option("--yes", "sure", flag_value="yes", help="Do not ask for confirmation.")
def reclaim(slot: int, socket: Path, sure: str | None) -> None:
    """Free the slot of an engine that has ended, if a restarted daemon cannot see that it has.

    `pagetier doctor` names such slots. A slot whose process the daemon watches, or that a process still has locked, is
    not freed. Only root and the daemon's own user may do it.

    Exit codes: 0: freed; 1: rejected with nothing changed; 2: invalid usage; 3: no daemon.
    """
    with daemon_at(socket, Rights.MANAGE) as daemon:
        click.echo(_RISK.format(slot=slot, engine=_engine_in(slot, take_snapshot(daemon.observer))))
        if not sure:
            confirm("Has its process ended?", "if its process has ended")
        _free(daemon, slot)


def _free(daemon: Daemon, slot: int) -> None:
    answer = daemon.ask(Reclaim(1, slot), Reclaimed)
    if answer.trouble:
        raise click.ClickException(answer.trouble)
    click.echo(f"slot {slot} is free")


def _engine_in(slot: int, snapshot: Snapshot) -> str:
    """Returns the name and user of the engine in a slot. Raises ClickException if there is none."""
    for client in snapshot.clients:
        if client.slot == slot:
            return f"{client.name} of user {client.uid}"
    used = ", ".join(str(client.slot) for client in snapshot.clients) or "none"
    raise click.ClickException(f"slot {slot} has no engine, so there is nothing to free; slots in use: {used}")
