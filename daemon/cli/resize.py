"""`pagetier resize`."""

from __future__ import annotations

from pathlib import Path

import click

from pagetier.daemon.cli.connect import daemon_at, socket_option
from pagetier.daemon.config.schema import fields
from pagetier.shm.protocol import Resize, Resized


def _readable(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    """The text itself. What is no size at all is told before anybody is asked."""
    setting = next(field.setting for field in fields() if field.parameter == param.name)
    try:
        if text is not None:
            setting.read(text)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error
    return text


@click.command()
@socket_option
@click.option("--disk-size", metavar="SIZE", callback=_readable, help="Bytes that the disk tier's files may take.")
@click.option(
    "--evict-low", metavar="SHARE", callback=_readable, help="Evict when less than this share of the arena is free."
)
@click.option("--evict-high", metavar="SHARE", callback=_readable, help="Evict until this share of the arena is free.")
def resize(socket: Path, **sizes: str | None) -> None:
    """Change sizes while engines run, until the configuration is read again.

    A smaller disk drops its coldest pages; while it is being opened anew nothing is found on it. Only root and the
    daemon's own user may. The arena itself has one size until the daemon's next cold start. Exit codes: 0; 1 refused,
    and all is as it was, or done, and the output could not be written: it says which; 2 used wrongly; 3 no daemon.
    """
    wanted = {name.replace("_", ".", 1): text for name, text in sizes.items() if text is not None}
    if not wanted:
        raise click.UsageError("say which size: --disk-size, --evict-low, --evict-high")
    with daemon_at(socket) as daemon:
        answer = daemon.ask(Resize(1, wanted), Resized)
    if answer.trouble:
        raise click.ClickException(answer.trouble)
    click.echo("\n".join(answer.changed) or "nothing changed")
