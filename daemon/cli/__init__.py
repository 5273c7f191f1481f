"""`pagetier`: commands that look at a daemon and tell it what to do.

A command is an entry point of group `pagetier.commands`: it is imported when it is called, and not for `--help`.
"""

from __future__ import annotations

import difflib
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

import click

from ..exits import exit_code_help
from ..version import version_option
from .output import told_if_not_written
from .summary import summary_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

GROUP = "pagetier.commands"


class Commands(click.Group):
    """A group whose commands are entry points."""

    @cached_property
    def found(self) -> dict[str, EntryPoint]:
        """The entry points by name."""
        return {point.name: point for point in sorted(entry_points(group=GROUP))}

    def main(self, *args: Any, **settings: Any) -> Any:
        """As click does; what can not be written is told in a line."""
        with told_if_not_written():
            return super().main(*args, **settings)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in order."""
        return list(self.found)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a command; None if there is none of this name. Raises ClickException if it can not be imported."""
        point = self.found.get(cmd_name)
        if point is None:
            return None
        try:
            command = point.load()
        except (ImportError, AttributeError) as error:
            raise click.ClickException(f"the command {cmd_name} can not be loaded: {error}") from error
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest name where there is no such command."""
        near = difflib.get_close_matches(args[0], self.found, n=1)
        if near and args[0] not in self.found:
            ctx.fail(f'No such command "{args[0]}"; did you mean "{near[0]}"?')
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands, or options where a hyphen was typed; imports no command."""
        from .completion import commands_that_begin

        return commands_that_begin(incomplete, self.found) or click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands with their summaries, and imports none."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary_of(point.module, point.attr)) for name, point in self.found.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=exit_code_help())
@version_option
def main() -> None:
    """Look at the KV cache daemon of this host, and tell it what to do."""
