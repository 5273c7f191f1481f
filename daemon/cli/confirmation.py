"""Asks for confirmation before a command drops pages."""

from __future__ import annotations

import sys

import click


def confirm(question: str, purpose: str) -> None:
    """Asks on the terminal. purpose: What --yes is for, "to drop these pages".

    Raises:
        click.UsageError: There is no terminal.
        click.Abort: The user declined.
    """
    if not sys.stdin.isatty():
        raise click.UsageError(f"cannot ask for confirmation without a terminal: use --yes {purpose}")
    click.confirm(question, abort=True)
