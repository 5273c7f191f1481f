"""Writes the help texts of commands into a page, and generates docs/commands.md from them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Final, Protocol

import click

from pagetier.daemon.cli import main as pagetier
from pagetier.daemon.main import main as pagetierd
from pagetier.daemon.man.markdown import Markdown
from pagetier.shm.exit_codes import Exit

_BENCH: Final = "pagetier.client.cli.bench.command"  # as text, since the daemon does not import the client
_WHOLE: Final = 200  # characters: more than the first sentence of a help text has
_INTRODUCTION: Final = """\
This page is generated from the help texts of the commands (`make man`); do not edit it. The manual pages
`pagetier`(1), `pagetier-bench`(1) and `pagetierd`(8) have the same."""


class PageWriter(Protocol):
    """A page that is written from top to bottom."""

    def subsection(self, title: str) -> object:
        """Adds a smaller heading."""

    def text(self, text: str) -> object:
        """Adds paragraphs, separated by empty lines."""

    def item(self, term: str, text: str) -> object:
        """Adds a term and its description."""


def bench_command() -> click.Group:
    """Returns the program pagetier-bench."""
    group: click.Group = importlib.import_module(_BENCH).main
    return group


def commands_page() -> str:
    """Returns docs/commands.md, the same on every host."""
    page = Markdown("Commands").text(_INTRODUCTION)
    page.section("Exit codes").table(("code", "meaning"), ((str(code.value), code.meaning) for code in Exit))
    for name, group in (("pagetier", pagetier), ("pagetier-bench", bench_command())):
        page.section(name).text(help_of(group))
        with click.Context(group, info_name=name) as ctx:
            page.table(("command", "what it does"), _purposes(group, ctx))
            write_commands(page, group, ctx)
    page.section("pagetierd").text(help_of(pagetierd))
    with click.Context(pagetierd, info_name="pagetierd") as ctx:
        write_options(page, pagetierd, ctx)
    return str(page)


def _purposes(group: click.Group, ctx: click.Context) -> Iterator[tuple[str, str]]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        yield f"`{name}`", command.get_short_help_str(_WHOLE)


def write_commands(page: PageWriter, group: click.Group, ctx: click.Context) -> None:
    """Writes all commands of a group, and those of the groups in it."""
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        child = click.Context(command, parent=ctx, info_name=name)
        _write_command(page, command, child)
        if isinstance(command, click.Group):
            write_commands(page, command, child)


def _write_command(page: PageWriter, command: click.Command, ctx: click.Context) -> None:
    page.subsection(f"{ctx.command_path} {' '.join(command.collect_usage_pieces(ctx))}")
    page.text(help_of(command))
    write_options(page, command, ctx)


def write_options(page: PageWriter, command: click.Command, ctx: click.Context) -> None:
    """Writes the options of a command."""
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None and record[1] and "--help" not in record[0]:
            page.item(*record)


def help_of(command: click.Command) -> str:
    """Returns the help text of a command."""
    return (command.help or "").replace("\f", "")
