"""The settings of a configuration as a list, each under all of its names."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from pagetier.daemon.config.schema import PREFIX, Config
from pagetier.daemon.config.value_types import Section, Setting

# What a first start and several daemons on one host need.
_FLAGS: Final = frozenset({"name", "socket", "arena.size", "disk.path", "disk.size"})


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One setting under all of its names."""

    section: str
    key: str
    setting: Setting
    default: Any  # msgspec.NODEFAULT if the default depends on the host

    @property
    def path(self) -> str:
        """Its name in the file: "arena.size", "socket"."""
        return f"{self.section}.{self.key}" if self.section else self.key

    @property
    def parameter(self) -> str:
        """Its name as an identifier: "arena_size"."""
        return self.path.replace(".", "_")

    @property
    def variable(self) -> str:
        """Its environment variable: "PAGETIER_ARENA_SIZE"."""
        return PREFIX + self.parameter.upper()

    @property
    def has_flag(self) -> bool:
        """Whether it has a flag of its own; `--set` gives all others."""
        return self.path in _FLAGS

    @property
    def flag(self) -> str:
        """Its name on the command line: "--arena-size", "--set arena.numa"."""
        return "--" + self.parameter.replace("_", "-") if self.has_flag else f"--set {self.path}"


class SetText(str):
    """A value that `--set` gave, and not the setting's own flag."""

    __slots__ = ()


def value_of(config: Config, field: Field) -> Any:
    """Returns the value of a setting in a configuration."""
    return getattr(getattr(config, field.section) if field.section else config, field.key)


def replaced(config: Config, values: Mapping[str, Any]) -> Config:
    """Returns the configuration with other values, by `Field.path`. They are not validated."""
    for field in fields():
        if field.path in values:
            table = getattr(config, field.section) if field.section else config
            table = msgspec.structs.replace(table, **{field.key: values[field.path]})
            config = msgspec.structs.replace(config, **{field.section: table}) if field.section else table
    return config


@functools.cache
def fields() -> tuple[Field, ...]:
    """Returns all settings, in the order of the Structs."""
    return tuple(_fields_of(Config, ""))


def _fields_of(struct: type[msgspec.Struct], section: str) -> Iterator[Field]:
    for field in msgspec.structs.fields(struct):
        if isinstance(field.type, type) and issubclass(field.type, Section):
            yield from _fields_of(field.type, field.name)
        elif setting := _setting_of(field.type):
            yield Field(section=section, key=field.name, setting=setting, default=field.default)


def _setting_of(kind: Any) -> Setting | None:
    """Returns how a field of this type is set; None for a constant."""
    return next((extra for extra in getattr(kind, "__metadata__", ()) if isinstance(extra, Setting)), None)
