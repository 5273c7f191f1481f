"""A group of commands that are imported when they are called, not for `--help`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pagetier.shm.stdio import exit_if_stdout_fails

if TYPE_CHECKING:
    from collections.abc import Mapping

    from click.shell_completion import CompletionItem


class CommandEntry(NamedTuple):
    """The module that defines a command under its name, and the first sentence of its help text."""

    module: str
    summary: str


class CommandTable(click.Group):
    """A group that finds its commands in a table.

    Args:
        entries: The commands by name.
        former: What to call instead of a command of an earlier build, by its name.
        settings: Those of a click.Group.
    """

    def __init__(
        self, *, entries: Mapping[str, CommandEntry], former: Mapping[str, str] | None = None, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.entries = entries
        self._former = former or {}

    def main(self, *args: Any, **settings: Any) -> Any:
        """Runs the command line. A failure to write the output ends the process with one line on stderr."""
        with exit_if_stdout_fails():
            return super().main(*args, **settings)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of all commands, in order."""
        return sorted(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns a command, which is imported, or None if there is none of this name.

        Raises:
            click.ClickException: The command's module cannot be imported.
        """
        if cmd_name not in self.entries:
            return None
        try:
            command = getattr(importlib.import_module(self.entries[cmd_name].module), cmd_name)
        except ImportError as error:
            raise click.ClickException(f"the command {cmd_name} cannot be loaded: {error}") from error
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the command of the arguments; for an unknown one the error says which is meant."""
        if args[0] not in self.entries:
            self._name_the_nearest(ctx, args[0])
        return super().resolve_command(ctx, args)

    def _name_the_nearest(self, ctx: click.Context, name: str) -> None:
        import difflib

        if name in self._former:
            ctx.fail(f'No such command "{name}": it is `{self._former[name]}` now')
        for near in difflib.get_close_matches(name, self.entries, n=1):
            ctx.fail(f'No such command "{name}"; did you mean "{near}"?')

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Returns completions: commands, or options after a hyphen. Imports no command."""
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=self.entries[name].summary) for name in names]
        return items or click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands with their summaries. Imports no command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.entries[name].summary) for name in self.list_commands(ctx)])
