"""`pagetier resize`."""

from __future__ import annotations

from pathlib import Path

import click

from pagetier.daemon.cli.connect import daemon_at, socket_option
from pagetier.daemon.config.schema import fields
from pagetier.shm.protocol import Resize, Resized


def _validated(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    """Returns the text, after validating it before the daemon is asked.

    Raises:
        click.BadParameter: The text is not a valid value of the setting.
    """
    setting = next(field.setting for field in fields() if field.parameter == param.name)
    try:
        if text is not None:
            setting.read(text)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error
    return text


@click.command()
@socket_option
@click.option("--disk-size", metavar="SIZE", callback=_validated, help="Largest total size of the disk tier's files.")
@click.option(
    "--evict-low", metavar="SHARE", callback=_validated, help="Evict when less than this share of the arena is free."
)
@click.option("--evict-high", metavar="SHARE", callback=_validated, help="Evict until this share of the arena is free.")
def resize(socket: Path, **sizes: str | None) -> None:
    """Change sizes while engines run, until the configuration is reloaded.

    A smaller disk tier drops its coldest pages; while it is reopened, its pages are not found. Only root and the
    daemon's own user may resize. The arena keeps its size until the next cold start of the daemon.

    Exit codes: 0: done; 1: rejected with nothing changed, or done but the output could not be written (the message says
    which); 2: invalid usage; 3: no daemon.
    """
    _resize(socket, {name.replace("_", ".", 1): text for name, text in sizes.items() if text is not None})


def _resize(socket: Path, wanted: dict[str, str]) -> None:
    if not wanted:
        raise click.UsageError("give at least one of --disk-size, --evict-low and --evict-high")
    with daemon_at(socket) as daemon:
        answer = daemon.ask(Resize(1, wanted), Resized)
    if answer.trouble:
        raise click.ClickException(answer.trouble)
    click.echo("\n".join(answer.changed) or "nothing changed")
