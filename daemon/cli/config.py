"""`pagetier config`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from pagetier.daemon.cli.daemon_connection import Daemon, daemon_at, socket_option
from pagetier.daemon.config.disk_capacity import capacity_notes
from pagetier.daemon.config.loader import with_changes
from pagetier.daemon.config.schema import Config
from pagetier.shm.protocol import Describe, Description

_OF_DAEMON: Final = ("--check", "--config")
_CHECK: Final = "`pagetierd --check --config FILE` checks a configuration"


class _ConfigCommand(click.Command):
    """`pagetier config`, which users take for the command that checks a file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the command line. The error for --check and a file says which command has them."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in _OF_DAEMON:
                raise
            raise click.UsageError(f"No such option '{error.option_name}': {_CHECK}", ctx) from error


@click.command(cls=_ConfigCommand)
@socket_option
@click.option("--json", "show", flag_value="json", help="Print one JSON object instead of lines.")
def config(socket: Path, show: str | None) -> None:
    """Show the settings that the daemon runs by, and the source of each.

    `pagetierd --set NAME=VALUE` gives a setting by the name that is shown, for example --set evict.policy=lru.

    A setting that waits for a restart is shown with the value in force and with the one that waits. `pagetierd --check`
    validates a configuration without a daemon.

    Exit codes: 0: success; 3: no daemon.
    """
    with daemon_at(socket) as daemon:
        settings = daemon.ask(Describe(1), Description).settings
    if show == "json":
        values = {name: {"value": value, "source": source} for name, value, source in settings}
        click.echo(msgspec.json.format(msgspec.json.encode(values), indent=2))
        return
    widest = max(len(f"{name} = {value}") for name, value, _ in settings)
    notes = capacity_notes(_config_from(settings))
    for name, value, source in settings:
        room = f"; {notes[name]}" if name in notes else ""
        click.echo(f"{f'{name} = {value}':<{widest}}  # {source}{room}")


def config_of(daemon: Daemon) -> Config:
    """Returns the configuration that a daemon runs by. Raises Unreachable, Refused or ConfigError."""
    return _config_from(daemon.ask(Describe(1), Description).settings)


def _config_from(settings: Sequence[tuple[str, str, str]]) -> Config:
    return with_changes(Config(), {name: value for name, value, _ in settings}, "the daemon")
