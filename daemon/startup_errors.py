"""Reports why `pagetierd` does not start: a sentence on a terminal, a line with event=refused in a log."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import Any, NoReturn

import click

from pagetier.daemon.config.cli_options import ConfigCommand
from pagetier.shm.exit_codes import Exit
from pagetier.shm.log_format import event, formatter
from pagetier.shm.stdio import exit_if_stdout_fails


def give_up(code: Exit, error: object) -> NoReturn:
    """Ends the process after one line on stderr, if stderr can be written."""
    message = f"Error: {error}" if sys.stderr.isatty() else _line(code, error)
    with suppress(OSError):
        click.echo(message, err=True)
    raise SystemExit(code)


class DaemonCommand(ConfigCommand):
    """A command that reports usage errors in a unit file or a container like all its other errors."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parses the command line, and answers --help and --version."""
        try:
            with exit_if_stdout_fails():
                return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            if sys.stderr.isatty():
                raise
            give_up(Exit.USAGE, error.format_message())


def _line(code: Exit, error: object) -> str:
    record = logging.LogRecord("pagetierd", logging.ERROR, "", 0, "%s", (error,), None)
    vars(record).update(event("refused", code=code.value))
    return formatter().format(record)
