"""Parses and formats sizes and durations of the copy settings, with the same meaning as in the daemon's settings."""

from __future__ import annotations

import json
import math
import re
from typing import Final

_NUMBER: Final = re.compile(r"\s*([0-9]{1,19})(?:\.([0-9]{1,19}))?\s*([A-Za-z]*)\s*", re.ASCII)
_LETTERS: Final = "KMGTP"
_MICROSECONDS: Final = {"us": 1, "ms": 10**3, "s": 10**6, "": 10**6, "m": 6 * 10**7, "min": 6 * 10**7, "h": 36 * 10**8}


def _bytes_of_units() -> dict[str, int]:
    units = {"": 1, "B": 1, "kB": 1000}
    for power, letter in enumerate(_LETTERS, start=1):
        units |= {letter: 1024**power, f"{letter}iB": 1024**power, f"{letter}B": 1000**power}
    return units


_BYTES: Final = _bytes_of_units()


def read_size(raw: object) -> int:
    """Returns a number of bytes from a whole number or a text such as "32KiB" or "1.5G". Raises ValueError."""
    if type(raw) is int and raw >= 0:
        return raw
    size = _scaled(raw, _BYTES) if isinstance(raw, str) else None
    if size is None:
        raise ValueError(f'{shown(raw)} is not a size: bytes, or a number and a unit, such as "32KiB"')
    return size


def read_rate(raw: object) -> int:
    """Returns bytes per second from a size, with or without a trailing "/s". Raises ValueError."""
    return read_size(raw.removesuffix("/s") if isinstance(raw, str) else raw)


def read_duration(raw: object) -> float:
    """Returns seconds from a number or a text such as "2s" or "250ms". Raises ValueError."""
    if type(raw) in (int, float):
        return _seconds(raw)
    microseconds = _scaled(raw, _MICROSECONDS) if isinstance(raw, str) else None
    if microseconds is None:
        raise ValueError(f'{shown(raw)} is not a duration: seconds, or a number and a unit, such as "250ms"')
    return microseconds / 10**6


def read_count(raw: object) -> int:
    """Returns a whole number unchanged. Raises ValueError for anything else."""
    if type(raw) is not int:
        raise ValueError(f"{shown(raw)} is not a whole number")
    return raw


def spell_size(nbytes: int) -> str:
    """Formats a number of bytes exactly, so that read_size() returns the same number: "32KiB", "4097B"."""
    for power in range(len(_LETTERS), 0, -1):
        if nbytes and nbytes % 1024**power == 0:
            return f"{nbytes // 1024**power}{_LETTERS[power - 1]}iB"
    return f"{nbytes}B"


def shown(raw: object) -> str:
    """Formats a TOML value for a message: strings are quoted, long values are cut."""
    text = json.dumps(raw, default=str, ensure_ascii=False)
    return text if len(text) <= 100 else text[:97] + "..."


def _seconds(raw: object) -> float:
    assert isinstance(raw, (int, float))
    if not 0 <= raw < math.inf:
        raise ValueError(f"{shown(raw)} is not a duration: 0 or more seconds")
    return float(raw)


def _scaled(text: str, units: dict[str, int]) -> int | None:
    """Returns the number times its unit, rounded down; None if the text is not a number with one of these units."""
    found = _NUMBER.fullmatch(text)
    if found is None or found[3] not in units:
        return None
    whole, fraction, unit = found[1], found[2] or "", found[3]
    places: int = 10 ** len(fraction)
    return int(whole + fraction) * units[unit] // places
