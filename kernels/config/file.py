"""The configuration of the copies: a small TOML file, to which `pagetier calibrate` writes thresholds.

It is separate from the daemon's: copies run in the engine's process, and their speed depends on its GPU. The keys are
those of CopySettings, with the tables [stores] and [loads] of Thresholds::

    store_bandwidth = "20GB/s"
    queue_limit = "2s"

    [stores]
    kernel_below = "32KiB"
    staged_below = "128KiB"
"""

from __future__ import annotations

import difflib
import os
import re
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from pagetier.kernels.config.copy_settings import WAYS, CopySettings, Thresholds
from pagetier.shm.errors import PagetierError
from pagetier.shm.units import parse_duration, parse_size, shown, spell_size

COPY_VARIABLE: Final = "PAGETIER_COPY_CONFIG"
_Settings = TypeVar("_Settings", CopySettings, Thresholds)
_NAME: Final = Path("pagetier", "copy.toml")
_SYSTEM: Final = Path("/etc")
_TABLES: Final = ("stores", "loads")
_HEADER: Final = re.compile(r"\s*\[+\s*\"?(\w+)")


class SettingsError(PagetierError):
    """The copy settings cannot be used. The message names the file and the key."""


def load_settings(path: Path | None = None, environ: Mapping[str, str] | None = None) -> CopySettings:
    """Reads the settings file; keys that it does not have keep their defaults.

    Args:
        path: The file. By default the one that `$PAGETIER_COPY_CONFIG` names, else the first that exists of
            `$XDG_CONFIG_HOME/pagetier/copy.toml` (`~/.config`) and `/etc/pagetier/copy.toml`, else none.
        environ: The environment; by default this process's.

    Returns:
        The settings.

    Raises:
        SettingsError: The file is invalid, or a file that is named does not exist.
    """
    env = os.environ if environ is None else environ
    named = path or _named(env)
    if named is not None:
        return read_settings(_text(named), str(named))
    for place in (*_own_place(env), _SYSTEM / _NAME):
        try:
            return read_settings(_text(place), str(place))
        except _MissingError:
            continue
    return CopySettings()


def default_place(environ: Mapping[str, str] | None = None) -> Path:
    """Returns the path where this user's settings are written: the first of load_settings(), whether it exists or not.

    Raises:
        SettingsError: The environment names no path, not even a home directory.
    """
    env = os.environ if environ is None else environ
    places = [*filter(None, [_named(env)]), *_own_place(env)]
    if not places:
        raise SettingsError(f"cannot choose a path for the file: set {COPY_VARIABLE} or HOME")
    return places[0]


def read_settings(text: str, location: str) -> CopySettings:
    """Parses the text of a settings file; messages call it `location`. Raises SettingsError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{location}: {error}") from error
    except ValueError as error:
        raise SettingsError(f"{location}: a number has too many digits") from error
    except RecursionError as error:
        raise SettingsError(f"{location}: brackets are nested too deeply") from error
    tables = {name: document.pop(name) for name in _TABLES if name in document}
    given: dict[str, Any] = {name: _read_table(table, name, location) for name, table in tables.items()}
    return _built(CopySettings, given | _read_keys(document, "", location), f"{location}: ")


def write_settings(path: Path, settings: CopySettings, measured: str) -> None:
    """Writes settings to a file atomically: a concurrent reader sees either the old or the new ones.

    The lines of an existing file stay, comments included, if they agree with the settings; the two tables are always
    replaced.

    Args:
        path: The file.
        settings: The settings.
        measured: A comment for both tables that says what the thresholds were measured on.

    Raises:
        SettingsError: The file cannot be written.
    """
    try:
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        before = target.read_text() if target.exists() else ""
        _replace(target, _merged(before, settings, measured))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be written: {error}") from error


# --- reading --------------------------------------------------------------------------------------------------


class _MissingError(SettingsError):
    """The file does not exist."""


def _named(env: Mapping[str, str]) -> Path | None:
    name = env.get(COPY_VARIABLE)
    return Path(name) if name else None


def _own_place(env: Mapping[str, str]) -> list[Path]:
    """Returns this user's path; empty if the environment has no absolute one (XDG says to ignore relative paths)."""
    config, home = Path(env.get("XDG_CONFIG_HOME", "")), Path(env.get("HOME", ""))
    folder = config if config.is_absolute() else home / ".config"
    return [folder / _NAME] if folder.is_absolute() else []


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _MissingError(f"{path}: cannot be read: {error.strerror}") from error
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 text") from error


def _read_path(raw: object) -> str:
    if raw not in WAYS:
        raise ValueError(f"{shown(raw)} is not one of {', '.join(WAYS)}")
    return str(raw)


def _parse_rate(raw: object) -> int:
    """Returns bytes per second from a size, with or without a trailing "/s". Raises ValueError."""
    return parse_size(raw.removesuffix("/s") if isinstance(raw, str) else raw)


def _read_count(raw: object) -> int:
    if type(raw) is not int:
        raise ValueError(f"{shown(raw)} is not a whole number")
    return raw


_READERS: Final[dict[str, Callable[[object], Any]]] = {
    "path": _read_path,
    "programs": _read_count,
    "store_bandwidth": _parse_rate,
    "load_bandwidth": _parse_rate,
    "queue_limit": parse_duration,
    "chunk": parse_size,
    "depth": _read_count,
    "reserve_timeout": parse_duration,
    "staging": parse_size,
    **{f"{table}.{key}": parse_size for table in _TABLES for key in Thresholds.__struct_fields__},
}


def _read_table(table: object, name: str, location: str) -> Thresholds:
    if not isinstance(table, dict):
        raise SettingsError(f"{location}: {name} = {shown(table)}: must be a table, [{name}]")
    return _built(Thresholds, _read_keys(table, f"{name}.", location), f"{location}: {name}.")


def _read_keys(table: dict[str, Any], prefix: str, location: str) -> dict[str, Any]:
    return {key: _read_key(f"{prefix}{key}", raw, location) for key, raw in table.items()}


def _read_key(name: str, raw: object, location: str) -> Any:
    if name not in _READERS:
        raise SettingsError(f'{location}: unknown key "{name}" (= {shown(raw)}){_nearest(name)}')
    try:
        return _READERS[name](raw)
    except ValueError as error:
        raise SettingsError(f"{location}: {name} = {error}") from error


def _nearest(name: str) -> str:
    """Suggests the key that was probably meant, with its table, also if it stands in the wrong one."""
    last = {known.rpartition(".")[2]: known for known in reversed(_READERS)}
    full = difflib.get_close_matches(name, [*_READERS, *_TABLES], n=1, cutoff=0.8)
    loose = difflib.get_close_matches(name.rpartition(".")[2], last, n=1)
    near = [last[name]] if name in last else full or [last[key] for key in loose]
    return f'; did you mean "{near[0]}"?' if near else f"; there are {', '.join(_READERS)}"


def _built(struct: type[_Settings], given: dict[str, Any], before: str) -> _Settings:
    try:
        return struct(**given)
    except ValueError as error:
        raise SettingsError(f"{before}{error}") from error


# --- writing --------------------------------------------------------------------------------------------------


def _merged(before: str, settings: CopySettings, measured: str) -> str:
    kept = f"{_without_tables(before)}\n\n".lstrip()
    for head in (kept, _keys(settings)):
        text = f"{head}{_table('stores', settings.stores, measured)}\n{_table('loads', settings.loads, measured)}"
        try:
            if read_settings(text, "") == settings:
                return text
        except SettingsError:
            continue
    raise AssertionError(f"settings that cannot be read back: {settings}")


def _without_tables(text: str) -> str:
    """Returns the lines outside of the two tables."""
    lines, kept = [], True
    for line in text.splitlines():
        header = _HEADER.match(line)
        kept = header[1] not in _TABLES if header else kept
        if kept:
            lines.append(line)
    return "\n".join(lines).strip()


def _keys(settings: CopySettings) -> str:
    """Formats the settings that differ from the defaults, since a default may change with a version."""
    lines = []
    for field in msgspec.structs.fields(CopySettings):
        value = getattr(settings, field.name)
        if field.name not in _TABLES and value != field.default:
            sized = _READERS[field.name] in (parse_size, _parse_rate)
            lines.append(f"{field.name} = {_quoted(spell_size(value) if sized else value)}\n")
    return "".join([*lines, "\n"]) if lines else ""


def _table(name: str, thresholds: Thresholds, measured: str) -> str:
    keys = msgspec.structs.asdict(thresholds).items()
    lines = [f"{key} = {_quoted(spell_size(nbytes))}" for key, nbytes in keys]
    comment = "".join(char if char.isprintable() else " " for char in measured)
    return "\n".join([f"[{name}]", f"# {comment}", *lines, ""])


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _replace(target: Path, text: str) -> None:
    """Replaces the file, keeping its mode; a new file is readable by all, since engines of any user read it."""
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
