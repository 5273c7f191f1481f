"""The configuration's settings as click options, generated from the table of settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from pagetier.daemon.config.fields import Field, fields
from pagetier.daemon.config.schema import Config

_Command = TypeVar("_Command", bound=Callable[..., Any])


def config_options(command: _Command) -> _Command:
    """Decorates `command` with one option for each setting. Its value is a str, or None if the option was not given."""
    for field in reversed(fields()):
        option = click.option(
            field.flag,
            field.parameter,
            metavar=field.setting.metavar,
            help=_help(field),
            shell_complete=_choices(field),
        )
        command = option(command)
    return command


class ConfigCommand(click.Command):
    """A command whose help lists its settings under the tables of the configuration."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes one section for each table, under the table's subject."""
        for heading, records in options_by_table(self, ctx):
            with formatter.section(heading):
                formatter.write_dl(records)


def options_by_table(command: click.Command, ctx: click.Context) -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns a command's options as help texts show them, under the table that each belongs to."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            sections.setdefault(_heading(parameter.name), []).append(record)
    return list(sections.items())


def table_subject(section: str) -> str:
    """Returns the subject of a table of the configuration, in a few words."""
    table = next(table.type for table in msgspec.structs.fields(Config) if table.name == section)
    return (table.__doc__ or "").partition(":")[0].strip().rstrip(".")


def _heading(parameter: str | None) -> str:
    section = next((field.section for field in fields() if field.parameter == parameter), "")
    return f"[{section}] {table_subject(section)}" if section else "Options"


def config_flags(parameters: Mapping[str, Any]) -> dict[str, str | None]:
    """Returns those of a command's `parameters` that `config_options` added, for `loader.load`."""
    names = [field.parameter for field in fields()]
    return {name: parameters[name] for name in names if name in parameters}


def _choices(field: Field) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Returns the shell completion of the setting's value: the words of a choice, and nothing for free values."""
    words = field.setting.metavar.split("|")

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        return [word for word in words if len(words) > 1 and word.startswith(incomplete)]

    return complete


def _help(field: Field) -> str:
    if field.default is msgspec.NODEFAULT:
        return field.setting.help
    default = field.setting.show(field.default)
    return f"{field.setting.help} [default: {default}]" if default else field.setting.help


class NonEmptyPath(click.Path):
    """A path that is not empty.

    An empty path, as an unset variable of a script leaves it, would be the current folder.
    """

    def __init__(self, *, readable: bool = True) -> None:
        super().__init__(path_type=Path, readable=readable)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Rejects an empty value as a usage error."""
        if value == "":
            self.fail("an empty value names no file.", param, ctx)
        return super().convert(value, param, ctx)
