"""The configuration of the copies: a small TOML file, and the thresholds that `pagetier-bench calibrate` measured.

It is separate from the daemon's: copies run in the engine's process, and their speed depends on its GPU. The keys are
those of CopySettings, with the tables [stores] and [loads] of Thresholds::

    store_bandwidth = "20GB/s"
    queue_limit = "2s"

    [stores]
    kernel_below = "32KiB"
    staged_below = "128KiB"

`pagetier-bench calibrate` writes its two tables to a file of its own, copy.calibrated.toml. A table in the
configuration takes precedence over the measured one as a whole, so deleting the file restores the defaults and nothing
else.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from pagetier.kernels.config.copy_settings import CopySettings
from pagetier.shm.errors import PagetierError
from pagetier.shm.units import parse_duration, parse_size

COPY_VARIABLE: Final = "PAGETIER_COPY_CONFIG"
_WRITTEN: Final = "copy.toml"
_CALIBRATED: Final = "copy.calibrated.toml"
_SYSTEM: Final = Path("/etc/pagetier")
_DEFAULTS: Final = CopySettings()


class SettingsError(PagetierError):
    """The copy settings cannot be used. The message names the file and the key."""


def load_settings(path: Path | None = None, environ: Mapping[str, str] | None = None) -> CopySettings:
    """Reads the settings file; keys that it does not have keep the calibrated values, and else their defaults.

    Args:
        path: The file. By default the one that `$PAGETIER_COPY_CONFIG` names, else the first that exists of
            `$XDG_CONFIG_HOME/pagetier/copy.toml` (`~/.config`) and `/etc/pagetier/copy.toml`, else none. The
            calibrated values are in the first copy.calibrated.toml that exists in the same two folders.
        environ: The environment; by default this process's.

    Returns:
        The settings.

    Raises:
        SettingsError: A file is invalid, or a file that is named does not exist.
    """
    env = os.environ if environ is None else environ
    folders = [*_own_folder(env), _SYSTEM]
    calibrated = _first_of((folder / _CALIBRATED for folder in folders), _DEFAULTS)
    named = path or (Path(env[COPY_VARIABLE]) if env.get(COPY_VARIABLE) else None)
    if named is not None:
        return read_settings(_text(named), str(named), calibrated)
    return _first_of((folder / _WRITTEN for folder in folders), calibrated)


def calibrated_path(environ: Mapping[str, str] | None = None) -> Path:
    """Returns the path of this user's calibrated thresholds, whether the file exists or not.

    Raises:
        SettingsError: The environment does not even have a home directory.
    """
    for folder in _own_folder(os.environ if environ is None else environ):
        return folder / _CALIBRATED
    raise SettingsError("cannot choose a path for the file: set HOME or XDG_CONFIG_HOME")


def read_settings(text: str, location: str, base: CopySettings = _DEFAULTS) -> CopySettings:
    """Parses the text of a settings file.

    Args:
        text: The text.
        location: The name of the file in messages.
        base: The values of the keys that the text does not have.

    Returns:
        The settings.

    Raises:
        SettingsError: The text is not TOML, a key is unknown or its value invalid.
    """
    try:
        table = _parsed(tomllib.loads(text), "")
        given = msgspec.convert(table, CopySettings)
    except (ValueError, msgspec.ValidationError) as error:
        raise SettingsError(f"{location}: {error}") from error
    except RecursionError as error:
        raise SettingsError(f"{location}: brackets are nested too deeply") from error
    return msgspec.structs.replace(base, **{key: getattr(given, key) for key in table})


def _own_folder(env: Mapping[str, str]) -> list[Path]:
    """Returns this user's folder; none if the environment has no absolute one (XDG says to ignore relative paths)."""
    config, home = Path(env.get("XDG_CONFIG_HOME", "")), Path(env.get("HOME", ""))
    folder = config if config.is_absolute() else home / ".config"
    return [folder / "pagetier"] if folder.is_absolute() else []


class _MissingError(SettingsError):
    """The file does not exist."""


def _first_of(paths: Iterable[Path], base: CopySettings) -> CopySettings:
    """Reads the first file that exists; returns `base` if there is none."""
    for path in paths:
        try:
            return read_settings(_text(path), str(path), base)
        except _MissingError:
            continue
    return base


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _MissingError(f"{path}: cannot be read: {error.strerror}") from error
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 text") from error


def _parse_rate(raw: object) -> int:
    """Returns bytes per second from a size, with or without a trailing "/s". Raises ValueError."""
    return parse_size(raw.removesuffix("/s") if isinstance(raw, str) else raw)


# The values that are written with a unit.
_PARSERS: Final[dict[str, Callable[[object], float]]] = {
    "store_bandwidth": _parse_rate,
    "load_bandwidth": _parse_rate,
    "queue_limit": parse_duration,
    "chunk": parse_size,
    "reserve_timeout": parse_duration,
    "staging": parse_size,
    "kernel_below": parse_size,
    "staged_below": parse_size,
}


def _parsed(table: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {key: _parsed_value(f"{prefix}{key}", raw) for key, raw in table.items()}


def _parsed_value(name: str, raw: object) -> object:
    """Returns the value without its unit. Raises ValueError, with the key's full name."""
    parse = _PARSERS.get(name.rpartition(".")[2])
    if parse is None:
        return _parsed(raw, f"{name}.") if isinstance(raw, dict) else raw
    try:
        return parse(raw)
    except ValueError as error:
        raise ValueError(f"{name} = {error}") from error
