"""`pagetier resize`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import click

from pagetier.daemon.cli.config import config_of
from pagetier.daemon.cli.confirmation import confirm
from pagetier.daemon.cli.daemon_connection import Daemon, daemon_at, socket_option
from pagetier.daemon.config.disk_capacity import frames_of_disk
from pagetier.daemon.config.fields import fields
from pagetier.daemon.config.live_settings import Changes, LiveSettings
from pagetier.daemon.config.loader import ConfigError, with_changes
from pagetier.daemon.config.validation import beyond_its_disk
from pagetier.daemon.host.disk_space import space_seen
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.peer_credentials import Rights
from pagetier.daemon.stats.snapshot_reader import take_snapshot
from pagetier.shm.protocol import Resize, Resized
from pagetier.shm.units import counted, format_size


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


class _ResizeCommand(click.Command):
    """A command whose error for a size that no running daemon changes says what changes it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the command line."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if not error.option_name.startswith("--arena-"):
                raise
            way = "set it in pagetierd's configuration, then stop and start the daemon"
            raise click.UsageError(f"a running daemon keeps the size of its arena (arena.size): {way}", ctx) from error


@click.command(cls=_ResizeCommand)
@socket_option
@click.option("--disk-size", metavar="SIZE", callback=_validated, help="Largest total size of the disk tier's files.")
@click.option("--evict-free", metavar="SHARE", callback=_validated, help="Evict until this share of the arena is free.")
@click.option("--yes", "sure", flag_value="yes", help="Do not ask for confirmation.")
@click.option("--dry-run", "dry", flag_value="dry", help="Say what would happen, and change nothing.")
def resize(socket: Path, sure: str | None, dry: str | None, **sizes: str | None) -> None:
    """Change sizes while engines run, until the configuration is reloaded.

    A smaller disk tier drops its coldest pages, after a confirmation; while it is reopened, its pages are not found.
    Only root and the daemon's own user may resize. The arena keeps its size until the next cold start of the daemon.

    Exit codes: 0: done; 1: rejected with nothing changed, or done but the output could not be written (the message says
    which); 2: invalid usage; 3: no daemon.
    """
    wanted = {name.replace("_", ".", 1): text for name, text in sizes.items() if text is not None}
    _require_one(wanted)
    with daemon_at(socket, Rights.MANAGE) as daemon:
        planned = _planned(daemon, wanted)
        loss = _disk_loss(daemon, wanted.get("disk.size"))
        warnings = list(_too_large(daemon, wanted))
        for warning in warnings:
            click.echo(f"warning: {warning}", err=True)
        click.echo(loss, nl=bool(loss))
        if dry:
            click.echo("\n".join(planned.done) or "nothing would change")
            return
        if loss and not sure:
            confirm("Drop them?", "to drop these pages")
        _resize(daemon, wanted, warnings)


def _require_one(wanted: dict[str, str]) -> None:
    if not wanted:
        raise click.UsageError("give at least one of --disk-size and --evict-free")


def _planned(daemon: Daemon, wanted: dict[str, str]) -> Changes:
    """Returns what the daemon would change. Raises ClickException with the daemon's own words if it would reject it."""
    try:
        return LiveSettings(config_of(daemon)).resize(wanted)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error


def _disk_loss(daemon: Daemon, size: str | None) -> str:
    """Returns a sentence about the pages that a disk of this size would drop; "" if it drops none."""
    snapshot = take_snapshot(daemon.observer)
    disk, frame = snapshot.tiers.disk, snapshot.daemon.frame_bytes
    if size is None or not disk.used:
        return ""
    room = frame * frames_of_disk(with_changes(config_of(daemon), {"disk.size": size}, "resize"))
    if room >= disk.used:
        return ""
    pages = math.ceil(disk.pages * (1 - room / disk.used))
    return (
        f"about {counted(pages, 'page')} of {disk.pages:,} will leave the disk: {size} has room for {format_size(room)}"
    )


def _too_large(daemon: Daemon, wanted: dict[str, str]) -> Iterator[str]:
    """Yields a warning for each device that is larger than its file system, as far as this user can see that."""
    for device in with_changes(config_of(daemon), wanted, "resize").disk.devices if "disk.size" in wanted else ():
        with suppress(OSError):
            yield from filter(None, [beyond_its_disk(device, space_seen(device.path, Host()).room)])


def _resize(daemon: Daemon, wanted: dict[str, str], warned: Sequence[str]) -> None:
    """Resizes, and prints what changed. The daemon's warning of a file system is left out if one was printed before."""
    answer = daemon.ask(Resize(1, wanted), Resized)
    if answer.trouble:
        raise click.ClickException(answer.trouble)
    lines = [line for line in answer.changed if not (warned and line.startswith("warning: disk.size"))]
    click.echo("\n".join(lines) or "nothing changed")
