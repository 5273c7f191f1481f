"""What a tenant may be called: its name becomes part of a user, of units, of folders and of a configuration's file."""

from __future__ import annotations

import re

import click

# 31 characters are the most that a user may have, of which "pagetier-" takes 9
_NAME = re.compile("[a-z][a-z0-9_-]{0,21}")
_TAKEN = frozenset({"pagetierd"})  # /etc/pagetier/pagetierd.toml is the plain daemon's
_RULE = "1 to 22 of the characters a-z 0-9 _ -, the first of them a letter"


class TenantName(click.ParamType):
    """A name that systemd, sysusers and file systems all take as it is."""

    name = "name"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, or the rule that it breaks."""
        text = str(value)
        if not _NAME.fullmatch(text):
            self.fail(f'"{text}" can not be a tenant\'s name: {_RULE}', param, ctx)
        if text in _TAKEN:
            self.fail(f'"{text}" can not be a tenant\'s name: the plain daemon has it', param, ctx)
        return text
