"""`--version`, for the daemon and the command line. Imports little, since `--help` needs it."""

from __future__ import annotations

import click


def _show(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:  # noqa: FBT001  click calls it so
    if not asked or ctx.resilient_parsing:
        return
    from pagetier import __version__
    from pagetier.shm.protocol import BUILD

    click.echo(f"{ctx.info_name} {__version__} ({BUILD.removeprefix('pagetier ')})")
    ctx.exit()


version_option = click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show, help="Show the version and exit."
)
