"""Reports why `pagetierd` does not start: a sentence on a terminal, a line with event=refused in a log."""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext, suppress
from typing import Any, NoReturn

import click

from pagetier.daemon.common.exit_codes import Exit
from pagetier.daemon.common.stdout import end_without_stdout, exit_if_stdout_fails
from pagetier.daemon.config.cli_options import ConfigCommand
from pagetier.shm.log_format import event, formatter
from pagetier.shm.stdio import settle_stderr


def give_up(code: Exit, error: object) -> NoReturn:
    """Ends the process after one line on stderr, if stderr can be written."""
    message = f"pagetierd: {error}" if sys.stderr.isatty() else _line(code, error)
    with suppress(OSError):
        click.echo(message, err=True)
    raise SystemExit(code)


class DaemonCommand(ConfigCommand):
    """A command that reports usage errors in a unit file or a container like all its other errors."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parses the command line, and answers --help and --version."""
        settle_stderr()
        try:
            # A daemon needs no stdout, except for --help and --version.
            with exit_if_stdout_fails() if sys.stdout else nullcontext():
                return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            if sys.stderr.isatty():
                raise
            give_up(Exit.USAGE, error.format_message())
        except click.exceptions.Exit:  # --help or --version
            if sys.stdout is None:
                end_without_stdout()
            raise


def _line(code: Exit, error: object) -> str:
    record = logging.LogRecord("pagetierd", logging.ERROR, "", 0, "%s", (error,), None)
    vars(record).update(event("refused", code=code.value))
    return formatter().format(record)
