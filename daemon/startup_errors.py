"""How `pagetierd` says that it does not start: a sentence for people, event=refused for who reads a log."""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext, suppress
from typing import Any, NoReturn

import click

from pagetier.daemon.common.exit_codes import Exit
from pagetier.daemon.common.stdout import end_without_stdout, told_if_not_written
from pagetier.daemon.config.cli_options import ConfigCommand
from pagetier.shm.log_format import event, formatter
from pagetier.shm.stdio import settle_stderr


def give_up(code: Exit, error: object) -> NoReturn:
    """Ends the process, after one line on stderr; nobody is told where that can not be written to."""
    told = f"pagetierd: {error}" if sys.stderr.isatty() else _line(code, error)
    with suppress(OSError):
        click.echo(told, err=True)
    raise SystemExit(code)


class Refusing(ConfigCommand):
    """A command that is used wrongly in a unit file or a container says so as it says everything else."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Reads the command line, and answers --help and --version."""
        settle_stderr()
        try:
            # a daemon needs no output: without one there is nothing to tell
            with told_if_not_written() if sys.stdout else nullcontext():
                return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            if sys.stderr.isatty():
                raise
            give_up(Exit.USAGE, error.format_message())
        except click.exceptions.Exit:  # it was asked for one of them
            if sys.stdout is None:
                end_without_stdout()
            raise


def _line(code: Exit, error: object) -> str:
    record = logging.LogRecord("pagetierd", logging.ERROR, "", 0, "%s", (error,), None)
    vars(record).update(event("refused", code=code.value))
    return formatter().format(record)
