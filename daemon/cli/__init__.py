"""`pagetier`: commands that inspect and control a daemon.

A command's module is imported when the command is called, not for `--help`. The client's commands are named as text,
since the daemon does not import the client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from pagetier.daemon.common.version_option import version_option
from pagetier.shm.exit_codes import exit_code_help
from pagetier.shm.stdio import exit_if_stdout_fails

if TYPE_CHECKING:
    from collections.abc import Mapping

    from click.shell_completion import CompletionItem


class CommandEntry(NamedTuple):
    """The module that defines a command under its name, and the first sentence of its help text."""

    module: str
    summary: str


COMMANDS: Final[Mapping[str, CommandEntry]] = {
    "advise": CommandEntry(
        f"{__name__}.advise", "Show what other sizes of memory and disk would hit, and why pages were missed"
    ),
    "calibrate": CommandEntry(
        "pagetier.client.cli.calibrate",
        "Measure which copy path is fastest at which length, and write the thresholds",
    ),
    "config": CommandEntry(f"{__name__}.config", "Show the settings that the daemon runs by, and the source of each"),
    "doctor": CommandEntry(f"{__name__}.doctor", "Check the host and the daemon; each line says ok or what to do"),
    "flush": CommandEntry(f"{__name__}.flush", "Drop pages, or write all pages to disk"),
    "lookup": CommandEntry(f"{__name__}.lookup", "Say how many pages of a prompt are here, in memory and on disk"),
    "ls": CommandEntry(f"{__name__}.ls", "List the namespaces, or the largest prefixes of one"),
    "pin": CommandEntry(f"{__name__}.pin", "Keep pages in memory: they are evicted last"),
    "prefetch": CommandEntry(f"{__name__}.prefetch", "Read the pages of a prompt from disk into memory"),
    "reclaim": CommandEntry(
        f"{__name__}.reclaim", "Free the slot of an engine that has ended, if a restarted daemon cannot see that it has"
    ),
    "replay": CommandEntry(
        "pagetier.client.cli.replay", "Replay a TRACE of prompts and verify every byte that is loaded"
    ),
    "resize": CommandEntry(f"{__name__}.resize", "Change sizes while engines run, until the configuration is reloaded"),
    "selftest": CommandEntry(
        "pagetier.client.cli.selftest", "Store, match, load and drop a page of its own, and measure each step"
    ),
    "stats": CommandEntry(f"{__name__}.stats", "Show the contents of the cache and how it is used"),
    "top": CommandEntry(f"{__name__}.top", "Watch the cache: tiers, hit rates, throughput, engines and evictions"),
    "unit": CommandEntry(
        f"{__name__}.unit", "Print, install or remove the systemd units, the system user and an example configuration"
    ),
    "unpin": CommandEntry(f"{__name__}.pin", "Let pages leave memory again that `pagetier pin` or an engine keeps"),
    "wait": CommandEntry(f"{__name__}.wait", "Wait until engines can attach to the daemon"),
}


class Commands(click.Group):
    """A group that finds its commands in `COMMANDS`."""

    def main(self, *args: Any, **settings: Any) -> Any:
        """Runs the command line. A failure to write the output ends the process with one line on stderr."""
        with exit_if_stdout_fails():
            return super().main(*args, **settings)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of all commands, in order."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns a command, which is imported, or None if there is none of this name.

        Raises:
            click.ClickException: The command's module cannot be imported.
        """
        if cmd_name not in COMMANDS:
            return None
        try:
            command = getattr(importlib.import_module(COMMANDS[cmd_name].module), cmd_name)
        except ImportError as error:
            raise click.ClickException(f"the command {cmd_name} cannot be loaded: {error}") from error
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the command of the arguments; for an unknown one the error suggests the nearest name."""
        if args[0] not in COMMANDS:
            self._name_the_nearest(ctx, args[0])
        return super().resolve_command(ctx, args)

    def _name_the_nearest(self, ctx: click.Context, name: str) -> None:
        import difflib

        for near in difflib.get_close_matches(name, COMMANDS, n=1):
            ctx.fail(f'No such command "{name}"; did you mean "{near}"?')

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Returns completions: commands, or options after a hyphen. Imports no command."""
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=COMMANDS[name].summary) for name in names]
        return items or click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands with their summaries. Imports no command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in self.list_commands(ctx)])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=exit_code_help())
@version_option
def main() -> None:
    """Inspect and control the KV cache daemon of this host."""
