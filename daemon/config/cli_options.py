"""The configuration's settings as click options, made from the table of settings."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from pagetier.daemon.config.fields import Field, SetText, fields
from pagetier.daemon.config.schema import Config

_Command = TypeVar("_Command", bound=Callable[..., Any])


def config_options(command: _Command) -> _Command:
    """Returns `command` with `--set` for all settings, and with the flags that some settings have of their own.

    `config_flags` returns what they gave.
    """
    command = click.option(
        "--set",
        "changes",
        metavar="NAME=VALUE",
        multiple=True,
        callback=_pairs,
        shell_complete=_changes,
        help="Give any setting, as --set evict.policy=lru; may be repeated. pagetierd.toml(5) and docs/configuration.md"
        " describe all settings; `pagetier config` lists them.",
    )(command)
    for field in reversed(_fields_with_flag()):
        command = click.option(field.flag, field.parameter, metavar=field.setting.metavar, help=_help(field))(command)
    return command


def table_subject(section: str) -> str:
    """Returns the subject of a table of the configuration, in a few words."""
    table = next(table.type for table in msgspec.structs.fields(Config) if table.name == section)
    return (table.__doc__ or "").partition(":")[0].strip().rstrip(".")


def config_flags(parameters: Mapping[str, Any]) -> dict[str, str | None]:
    """Returns the settings that `config_options` read into a command's `parameters`, for `loader.load`.

    `--set` overrides a setting's own flag.
    """
    return {field.path: parameters[field.parameter] for field in _fields_with_flag()} | {
        path: SetText(text) for path, text in parameters["changes"]
    }


def changes_meant(option: str) -> list[str]:
    """Returns the `--set` for an option that spells a setting as the flags of some are: "--evict-policy"."""
    names = {field.parameter: f"{field.flag}=VALUE" for field in fields() if not field.has_flag}
    near = difflib.get_close_matches(option.removeprefix("--").replace("-", "_"), names, n=1, cutoff=0.9)
    return [names[name] for name in near]


def _fields_with_flag() -> list[Field]:
    return [field for field in fields() if field.has_flag]


def _pairs(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> list[tuple[str, str]]:
    """Returns names and values. Raises click.BadParameter for a text without a value."""
    pairs = [text.partition("=") for text in texts]
    for name, sign, _ in pairs:
        if not sign:
            raise click.BadParameter(f'"{name}" is not NAME=VALUE, such as evict.policy=lru', ctx, param)
    return [(name.strip(), value) for name, _, value in pairs]


def _changes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Returns the shell completion of `--set`: each name, with the words of a choice."""
    offered = [f"{field.path}={word}" for field in fields() for word in _words(field)]
    return [change for change in offered if change.startswith(incomplete)]


def _words(field: Field) -> list[str]:
    words = field.setting.metavar.split("|")
    return words if len(words) > 1 else [""]


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
