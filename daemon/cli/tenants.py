"""What a tenant may be called: its name becomes part of a user, of units, of folders and of a configuration's file."""

from __future__ import annotations

import re

import click

# 31 characters are the most that a user may have, of which "pagetier-" takes 9
_NAME = re.compile("[a-z][a-z0-9_-]{0,21}")
_TAKEN = {
    "pagetierd": "the plain daemon has it",
    "copy": "/etc/pagetier/copy.toml is what engines read, see `pagetier calibrate`",
}
_RULE = "1 to 22 of the characters a-z 0-9 _ -, the first of them a letter"


def tenant_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A name that systemd, sysusers and file systems all take as it is, or the rule that it breaks."""
    if value is None:
        return None
    if not _NAME.fullmatch(value):
        raise click.BadParameter(f'"{value}" can not be a tenant\'s name: {_RULE}', ctx, param)
    if value in _TAKEN:
        raise click.BadParameter(f'"{value}" can not be a tenant\'s name: {_TAKEN[value]}', ctx, param)
    return value
