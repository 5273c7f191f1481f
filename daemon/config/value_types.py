"""The types of settings: how a value is parsed, formatted and described.

One reader parses values from TOML, environment variables and flags. It takes the raw value (a str from variables and
flags, any TOML type from a file), returns the typed one, and raises ValueError with a message that names the value. A
`Setting` is placed in `Annotated`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from pagetier.daemon.config.suggestions import hint
from pagetier.shm._core import LEAST_FRAME_BYTES
from pagetier.shm.units import parse_duration, parse_size, shown, spell_duration, spell_size

NAME: Final = re.compile("[A-Za-z0-9._-]{1,100}")


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the configuration."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """How a setting is parsed (`read`), formatted as it would be written (`show`) and described (`metavar`, `help`)."""

    read: Callable[[object], Any]
    show: Callable[[Any], str]
    metavar: str
    help: str


def size_setting(help: str, least: int = 0) -> Setting:
    """Returns a setting in bytes, at least `least`."""

    def read(raw: object) -> int:
        nbytes = parse_size(raw)
        if nbytes < least:
            unit = "; a number without a unit is in bytes" if str(raw).strip().isdigit() and nbytes else ""
            raise ValueError(f"{shown(raw)} is too small: at least {spell_size(least)}{unit}")
        return nbytes

    return Setting(read=read, show=spell_size, metavar="SIZE", help=help)


def arena_setting(help: str, least: int) -> Setting:
    """Returns a setting in bytes, at least `least`, that may also be given as a percentage of this host's memory."""
    plain = size_setting(help, least)

    def read(raw: object) -> int:
        if not isinstance(raw, str) or not raw.strip().endswith("%"):
            size: int = plain.read(raw)
            return size
        share = share_of_percent(raw)
        return int(plain.read(int(share * _host_memory())))

    return Setting(read=read, show=spell_size, metavar="SIZE", help=help)


def share_of_percent(text: str) -> float:
    """Returns the share that a percentage such as "25%" means. Raises ValueError if it is not between 0 and 100."""
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent < 100:
        raise ValueError(f"{shown(text)} is not a percentage: 0 <= percentage < 100, such as 25%")
    return percent / 100


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def frame_setting(help: str) -> Setting:
    """Returns a setting for the bytes of a frame: a power of two, at least 4096."""
    plain = size_setting(help, least=LEAST_FRAME_BYTES)

    def read(raw: object) -> int:
        nbytes: int = plain.read(raw)
        if nbytes & (nbytes - 1):
            below = 1 << (nbytes.bit_length() - 1)
            raise ValueError(f"{shown(raw)} is not a power of two ({spell_size(below)} is)")
        return nbytes

    return Setting(read=read, show=spell_size, metavar="SIZE", help=help)


def count_setting(help: str, least: int, most: int) -> Setting:
    """Returns a setting for a whole number from `least` to `most`, both included."""

    def read(raw: object) -> int:
        if isinstance(raw, bool) or not re.fullmatch("-?[0-9]{1,19}", str(raw), re.ASCII):
            raise ValueError(f"{shown(raw)} is not a whole number")
        if not least <= int(str(raw)) <= most:
            raise ValueError(f"{shown(raw)} is not between {least} and {most}")
        return int(str(raw))

    return Setting(read=read, show=str, metavar="N", help=help)


def share_setting(help: str) -> Setting:
    """Returns a setting for a share: 0 <= share < 1, or a percentage such as "5%"."""

    def read(raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
            raise ValueError(f"{shown(raw)} is not a share")
        if isinstance(raw, str) and raw.strip().endswith("%"):
            return share_of_percent(raw)
        share = _float(raw)
        if not 0 <= share < 1:
            raise ValueError(f"{shown(raw)} is not a share: 0 <= share < 1, such as 0.01")
        return share

    return Setting(read=read, show=str, metavar="SHARE", help=help)


def _float(raw: str | float) -> float:
    try:
        return float(raw)
    except (ValueError, OverflowError):
        raise ValueError(f"{shown(raw)} is not a number") from None


def duration_setting(help: str) -> Setting:
    """Returns a setting in seconds, more than zero."""

    def read(raw: object) -> float:
        seconds: float = parse_duration(raw)
        if seconds <= 0:
            raise ValueError(f"{shown(raw)} is too short: must be more than zero")
        return seconds

    return Setting(read=read, show=spell_duration, metavar="DURATION", help=help)


def choice_setting(help: str, *names: str) -> Setting:
    """Returns a setting whose value is one of `names`."""

    def read(raw: object) -> str:
        if raw not in names:
            raise ValueError(f"{shown(raw)} is not one of {', '.join(names)}{hint(str(raw), names)}")
        return str(raw)

    return Setting(read=read, show=str, metavar="|".join(names), help=help)


def url_setting(help: str) -> Setting:
    """Returns a setting for an URL; an empty value means none. What the URL says is checked where it is used."""

    def read(raw: object) -> str:
        if raw == "":
            return ""
        scheme, _, rest = raw.partition("://") if isinstance(raw, str) else ("", "", "")
        if not scheme or not rest.isprintable() or not rest or " " in rest:
            raise ValueError(f"{shown(raw)} is not an URL: write for example file:///mnt/pages")
        return f"{scheme}://{rest}"

    return Setting(read=read, show=str, metavar="URL", help=help)


def name_setting(help: str) -> Setting:
    """Returns a setting for a name that fits into file names: 1 to 100 letters, digits, dots, underscores, hyphens."""

    def read(raw: object) -> str:
        if not isinstance(raw, str) or not NAME.fullmatch(raw):
            raise ValueError(f"{shown(raw)} is not a name: 1 to 100 of the characters A-Z a-z 0-9 . _ -")
        return raw

    return Setting(read=read, show=str, metavar="NAME", help=help)


def sizes_setting(help: str) -> Setting:
    """Returns a setting for one or several sizes in bytes, in a list or in one string with commas; 0 means none."""

    def read(raw: object) -> tuple[int, ...]:
        items = raw if isinstance(raw, list) else raw.split(",") if isinstance(raw, str) else [raw]
        sizes = tuple(parse_size(item) for item in items)
        if len(sizes) > 1 and not all(sizes):
            raise ValueError(f"{shown(raw)} has a size of 0: leave its folder out of disk.path")
        return sizes if any(sizes) else ()

    return Setting(read=read, show=_show_sizes, metavar="SIZE,...", help=help)


def _show_sizes(sizes: tuple[int, ...]) -> str:
    return ",".join(map(spell_size, sizes)) or "0"


def mode_setting(help: str) -> Setting:
    """Returns a setting for permission bits, an octal string.

    A TOML number is rejected, since 660 and 0o660 are both numbers, and only one of them means what it says.
    """

    def read(raw: object) -> int:
        if not isinstance(raw, str) or not re.fullmatch("0?[0-7]{3}", raw):
            raise ValueError(f'{shown(raw)} is not a mode: write it as an octal string, such as "0660"')
        if int(raw, 8) & 0o600 != 0o600:
            raise ValueError(f"{shown(raw)} locks out the daemon's own user: at least 0600")
        return int(raw, 8)

    return Setting(read=read, show="{:04o}".format, metavar="MODE", help=help)
