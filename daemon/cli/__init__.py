"""`pagetier`: commands that inspect and control a daemon.

A command's module is imported when the command is called, not for `--help`. Commands of other rooms are entry points of
the group `pagetier.commands`, so that this room does not import the client.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from pagetier.daemon.cli.registry import CommandLocation, others, own, summary_of
from pagetier.daemon.common.exit_codes import exit_code_help
from pagetier.daemon.common.version_option import version_option
from pagetier.shm.stdio import exit_if_stdout_fails

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Commands(click.Group):
    """A group that finds its commands by the registry."""

    @cached_property
    def own(self) -> dict[str, CommandLocation]:
        """The commands of this room."""
        return own()

    @cached_property
    def found(self) -> dict[str, CommandLocation]:
        """All commands, ordered by name."""
        return dict(sorted((others() | self.own).items()))

    def main(self, *args: Any, **settings: Any) -> Any:
        """Runs the command line. A failure to write the output ends the process with one line on stderr."""
        with exit_if_stdout_fails():
            return super().main(*args, **settings)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of all commands, in order."""
        return list(self.found)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns a command, which is imported, or None if there is none of this name.

        Raises:
            click.ClickException: The command's module cannot be imported.
        """
        place = self.own.get(cmd_name) or self.found.get(cmd_name)
        if place is None:
            return None
        try:
            return place.load()
        except (ImportError, AttributeError) as error:
            raise click.ClickException(f"the command {cmd_name} cannot be loaded: {error}") from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the command of the arguments; for an unknown one the error suggests the nearest name."""
        if args[0] not in self.own and args[0] not in self.found:
            self._name_the_nearest(ctx, args[0])
        return super().resolve_command(ctx, args)

    def _name_the_nearest(self, ctx: click.Context, name: str) -> None:
        import difflib

        for near in difflib.get_close_matches(name, self.found, n=1):
            ctx.fail(f'No such command "{name}"; did you mean "{near}"?')

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Returns completions: commands, or options after a hyphen. Imports no command."""
        from pagetier.daemon.cli.registry import commands_that_begin

        return commands_that_begin(incomplete, self.found) or click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands with their summaries. Imports no command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary_of(place.module, place.function)) for name, place in self.found.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=exit_code_help())
@version_option
def main() -> None:
    """Inspect and control the KV cache daemon of this host."""
