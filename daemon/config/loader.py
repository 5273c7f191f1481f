"""Loads the configuration: flags override `PAGETIER_*` variables, and variables override the TOML file."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from pagetier.daemon.config.fields import Field, SetText, fields, replaced
from pagetier.daemon.config.mistakes import ConfigError, Mistakes
from pagetier.daemon.config.path_types import NOT_UTF8, is_utf8
from pagetier.daemon.config.schema import PREFIX, Config
from pagetier.daemon.config.suggestions import (
    advice_for_former,
    advice_for_line,
    hint,
    hint_for_path,
    set_by_kubernetes,
)
from pagetier.daemon.config.validation import conflicts
from pagetier.shm.socket_path import default_socket
from pagetier.shm.units import shown

MOST_BYTES: Final = 1 << 20


class NoTextFileError(Exception):
    """The path does not name a readable text file; the message says why."""


def text_of(path: Path) -> str:
    """Returns the whole text of a file.

    A running daemon also reads its file by this function, so it must not block: a FIFO would wait for a writer, and a
    device has no end. Raises also OSError, and UnicodeDecodeError for a file that is not UTF-8.

    Raises:
        NoTextFileError: The path names something else than a regular file, or a file that is too large.
    """
    with open(path, "rb", opener=_open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise NoTextFileError("not a regular file")
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise NoTextFileError(f"too large: at most {MOST_BYTES >> 20} MiB")
    return content.decode("utf-8-sig")  # some editors begin a file with a byte order mark, which TOML does not allow


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


__all__ = [
    "FILE_VARIABLE",
    "Beside",
    "Config",
    "ConfigError",
    "ConfigReader",
    "Field",
    "fields",
    "load",
    "read_text",
    "with_changes",
]

FILE_VARIABLE = "PAGETIER_CONFIG"
# The settings of the engines, which a host may set for all processes; see kernels/config/settings_file.py.
_ENGINE_VARIABLES = ("PAGETIER_COPY_CONFIG",)

# Returns the configuration that would be in force if the daemon that runs loaded the given one.
Beside: TypeAlias = Callable[[Config], Config]


class _SourcedValue(msgspec.Struct, frozen=True):
    """A value that was parsed from a source, and the place to name in messages."""

    value: Any
    location: str


class _Reading:
    """Collects the values of all sources, by `Field.path`, and the mistakes in them."""

    def __init__(self) -> None:
        self.given: dict[str, _SourcedValue] = {}
        self.mistakes = Mistakes(ConfigError)

    def take(self, field: Field, raw: object, location: str) -> None:
        """Reads the value of a setting."""
        with self.mistakes.noted(field.path):
            try:
                self.given[field.path] = _SourcedValue(field.setting.read(raw), location)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{location}: {error}") from error

    def check(self, config: Config, otherwise: str = "default") -> None:
        """Notes settings that do not fit each other. otherwise: The source to name for values that were not given."""

        def describe(path: str, value: str) -> str:
            return f"{path} = {value} ({self.given[path].location if path in self.given else otherwise})"

        for wrong in [each for each in conflicts(config, describe) if not self.mistakes.may_explain(each)]:
            self.mistakes.note(ConfigError(wrong))


class ConfigReader:
    """Reads the configuration from a file, environment variables and flags, again for each reload.

    A flag overrides a variable, a variable overrides the file, and the file overrides the default. Values that are
    overridden are validated too.

    Attributes:
        sources: The source of each setting that was given, by `Field.path`, as it was read last.
    """

    def __init__(
        self,
        path: Path | None,
        env: Mapping[str, str],
        flags: Mapping[str, str | None],
        defaults: Config | None = None,
    ) -> None:
        """Creates a reader.

        Args:
            path: The file; None for `$PAGETIER_CONFIG`, or no file.
            env: The environment.
            flags: Values by `Field.path`; None for a flag that was not given.
            defaults: The values of what is not given, and all constants.
        """
        named = env.get(FILE_VARIABLE)
        self._file = path if path is not None else Path(named) if named else None
        self._env, self._flags = env, flags
        self._defaults = defaults or Config(socket=default_socket(env))
        self.sources: Mapping[str, str] = {}

    def read(self, beside: Beside | None = None) -> Config:
        """Returns the configuration.

        Args:
            beside: For a reload: what would be in force is validated too.

        Raises:
            ConfigError: A source cannot be read, or a setting is unknown or invalid.
        """
        reading = _Reading()
        if self._file is not None:
            _read_file(self._file, reading)
        _read_environment(self._env, reading)
        _read_flags(self._flags, reading)
        config = replaced(self._defaults, {path: each.value for path, each in reading.given.items()})
        reading.check(config)
        reading.mistakes.raise_all()
        if beside is not None:
            _check_in_force(beside(config), reading)
        self.sources = {path: value.location for path, value in reading.given.items()}
        return config


def load(path: Path | None, env: Mapping[str, str], flags: Mapping[str, str | None]) -> Config:
    """Returns the configuration. Raises ConfigError; see ConfigReader."""
    return ConfigReader(path, env, flags).read()


def with_changes(config: Config, texts: Mapping[str, str], location: str) -> Config:
    """Returns the configuration with other values for some settings.

    Args:
        config: The configuration to change.
        texts: Values by `Field.path`.
        location: The source of the values, for messages.

    Raises:
        ConfigError: A setting is unknown or its value invalid.
    """
    known = {field.path: field for field in fields()}
    reading = _Reading()
    for path, text in texts.items():
        if path not in known:
            raise ConfigError(f'{location}: unknown setting "{path}"{hint(path, known)}')
        reading.take(known[path], text, f"{location}: {path}")
    changed = replaced(config, {path: each.value for path, each in reading.given.items()})
    reading.check(changed, "in force")
    reading.mistakes.raise_all()
    return changed


def _read_file(path: Path, reading: _Reading) -> None:
    document: dict[str, Any] = {}
    with reading.mistakes.noted():
        document = _parse(path, read_text(path))
    for section, key, raw in _entries(path, document, reading.mistakes):
        with reading.mistakes.noted():
            field = _field_in_file(path, section, key, raw)
            reading.take(field, raw, f"{path}: {field.path}")


def _entries(path: Path, document: dict[str, Any], mistakes: Mistakes) -> Iterator[tuple[str, str, Any]]:
    """Yields table, key and value of each line; the table is "" for lines before the first one."""
    sections = {field.section for field in fields() if field.section}
    for name, value in document.items():
        if name not in sections:
            yield "", name, value
        elif isinstance(value, dict):
            yield from ((name, key, raw) for key, raw in value.items())
        else:
            mistakes.note(ConfigError(f"{path}: {name} = {shown(value)}: must be a table, [{name}]"))


def _field_in_file(path: Path, section: str, key: str, raw: object) -> Field:
    for field in fields():
        if (field.section, field.key) == (section, key):
            return field
    inside = f" in [{section}]" if section else ""
    is_table = isinstance(raw, dict)
    name = f"{section}.{key}" if section else key
    what = f"unknown table [{name}]" if is_table else f'unknown key "{key}"{inside} (= {shown(raw)})'
    former = (advice_for_former(f"{name}.{inner}") for inner in raw) if isinstance(raw, dict) else ()
    advice = advice_for_former(name) or next(filter(None, former), _nearest_key(section, key))
    raise ConfigError(f"{path}: {what}{advice}")


def _nearest_key(section: str, key: str) -> str:
    """Returns a hint with the nearest name in the same table, else with the full name of the nearest in any table."""
    full = {field.parameter: field for field in fields() if field.section}
    if not section and key in full:
        return f"; write {full[key].key} in the table [{full[key].section}]"
    same = [field.key for field in fields() if field.section == section]
    # The setting `quota` stands in a table of its own name.
    tables = [] if section else [*(field.section for field in fields() if field.section), "quota"]
    homes = [field.path for field in fields() if field.section and field.key == key]
    if not section and len(homes) > 1:
        return f"; it stands before any table: {' or '.join(homes)} may be meant"
    paths = {field.key: field.path for field in fields()}
    valid = f"; [{section}] has {', '.join(same)}" if section else f"; tables are {', '.join(dict.fromkeys(tables))}"
    return hint(key.lower(), [*same, *tables]) or hint(key, paths, spellings=paths) or valid


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}{advice_for_line(text, str(error))}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: a number is too long, or brackets are nested too deeply") from error


def read_text(path: Path) -> str:
    """Returns the text of a file. Raises ConfigError if it cannot be read, or its path cannot be shown."""
    if not is_utf8(str(path)):
        raise ConfigError(f"{path}: {NOT_UTF8}")
    try:
        return text_of(path)
    except NoTextFileError as error:
        raise ConfigError(f"{path}: {error}") from error
    except OSError as error:
        denied = isinstance(error, PermissionError)
        remedy = f"; user {os.geteuid()} must be able to read it and to enter its folders" if denied else ""
        raise ConfigError(f"{path}: cannot be read: {error.strerror}{remedy}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: not UTF-8 text (at line {line})") from error


def _read_environment(env: Mapping[str, str], reading: _Reading) -> None:
    known = {field.variable: field for field in fields()}
    for name in sorted(
        name for name in env if name.startswith(PREFIX) and name not in (FILE_VARIABLE, *_ENGINE_VARIABLES)
    ):
        if name in known:
            reading.take(known[name], env[name], f"variable {name}")
            continue
        near = advice_for_former(name) or hint(name, [*known, FILE_VARIABLE, *_ENGINE_VARIABLES])
        why = f": {by_kubernetes}" if (by_kubernetes := set_by_kubernetes(name)) else near
        reading.mistakes.note(ConfigError(f"unknown variable {name} (= {shown(env[name])}){why}"))


def _read_flags(flags: Mapping[str, str | None], reading: _Reading) -> None:
    known = {field.path: field for field in fields()}
    for path, raw in flags.items():
        if path not in known:
            unknown = f'flag --set: unknown setting "{path}"{hint_for_path(path, [*known])}'
            reading.mistakes.note(ConfigError(unknown))
        elif raw is not None:
            flag = f"--set {path}" if isinstance(raw, SetText) else known[path].flag
            reading.take(known[path], raw, f"flag {flag}")


def _check_in_force(config: Config, reading: _Reading) -> None:
    """Validates what a reload would put in force: a file can be valid alone, and invalid for the running daemon."""
    try:
        reading.check(config, "in force")
        reading.mistakes.raise_all()
    except ConfigError as error:
        raise ConfigError(f"{error}; settings that need a restart keep their values until then") from error
