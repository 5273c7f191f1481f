"""Parses and formats sizes, durations and counts.

Sizes: a plain number is bytes. ``K M G T P`` and ``KiB MiB GiB TiB PiB`` are powers of 1024 (so ``1.5G`` is 1.5 GiB);
``KB MB GB TB PB`` are powers of 1000. ``Gb`` and similar units read as bits and are rejected.

Durations: a plain number is seconds; ``us ms s m h d`` and ``min`` are units.
"""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from typing import Final

_BARE: Final = re.compile("[A-Za-z0-9_-]+")
_MOST: Final = 200


def shown(raw: object) -> str:
    """Returns a raw value for use in a message: strings are quoted, long values shortened."""
    try:
        text = _spelled(raw)
    except (ValueError, RecursionError):  # a number of thousands of digits, or deeply nested tables
        return "a value that is too long to be shown"
    return text if len(text) <= _MOST else text[: _MOST - 3] + "..."


def _spelled(raw: object) -> str:
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, str):
        return json.dumps(raw, ensure_ascii=False)
    if isinstance(raw, list):
        return f"[{', '.join(map(_spelled, raw))}]"
    if isinstance(raw, dict):
        return f"{{{', '.join(f'{_key(key)} = {_spelled(value)}' for key, value in raw.items())}}}"
    return str(raw)  # numbers, dates and times, as in TOML


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)


_LIMIT = 2**63 - 1
# Python does not parse longer numbers.
_NUMBER = re.compile(r"\s*([0-9]{1,4000}(?:\.[0-9]{1,20})?)\s*([A-Za-zµ]*)\s*", re.ASCII)
_A_SIZE = 'write a number and a unit, such as "512MiB" or "1.5G"'
_A_DURATION = 'write a number and a unit, such as "250ms", "30s" or "5m"'
_LETTERS = "KMGTP"
_SECONDS = {
    "us": Fraction(1, 1_000_000),
    "µs": Fraction(1, 1_000_000),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "": Fraction(1),
    "m": Fraction(60),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
_SPELLED_SECONDS = ("d", "h", "m", "s", "ms", "us")
_MOST_DAYS = 36_500  # in nanoseconds, and added to the current time, they fit into 63 bits


def _canonical_units() -> dict[str, int]:
    units = {"": 1, "B": 1}
    for power, letter in enumerate(_LETTERS, start=1):
        units |= {letter: 1024**power, f"{letter}i": 1024**power, f"{letter}iB": 1024**power}
        units[f"{letter}B"] = 1000**power
    return units


def _all_spellings(units: dict[str, int]) -> dict[str, int]:
    """Returns the units as they are, in lower case and in upper case; of mixed cases ("Gb") only "kB" is a unit."""
    spellings = {"kB": 1000}
    for name, factor in units.items():
        spellings |= {name: factor, name.lower(): factor, name.upper(): factor}
    return spellings


_BYTES = _all_spellings(_canonical_units())


def parse_size(raw: object) -> int:
    """Returns the bytes that `raw` specifies ("2GiB", "512 MiB", "1.5G", 4096), rounded down.

    Raises:
        ValueError: It is not a size, negative, less than a byte but not 0, or exceeds 63 bits; the message quotes it.
    """
    if isinstance(raw, bool) or not isinstance(raw, (str, int)):
        raise ValueError(f"{shown(raw)} is not a size: {_A_SIZE}")
    nbytes = _spelled_bytes(raw) if isinstance(raw, str) else raw
    if nbytes < 0:
        raise ValueError(f"{shown(raw)} is not a size: {_A_SIZE}, 0 or more")
    if nbytes > _LIMIT:
        raise ValueError(f"{_quoted(raw)} is too large: a size is at most {format_size(_LIMIT)}")
    return nbytes


def _spelled_bytes(text: str) -> int:
    number, unit = _split(text, f"a size: {_A_SIZE}")
    if unit not in _BYTES:
        raise ValueError(f'"{text}" is not a size: {_why_no_size_unit(unit)}')
    nbytes = int(number * _BYTES[unit])
    if number and not nbytes:  # 0 turns a setting off, which a size that is too small does not mean
        raise ValueError(f'"{text}" is less than one byte: use a larger unit')
    return nbytes


def parse_duration(raw: object) -> float:
    """Returns the seconds that `raw` specifies ("250ms", "30s", "5m", 60).

    Raises:
        ValueError: It is not a duration, negative or longer than 36,500 days; the message quotes it.
    """
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        raise ValueError(f"{shown(raw)} is not a duration: {_A_DURATION}")
    seconds = _spelled_seconds(raw) if isinstance(raw, str) else _plain_seconds(raw)
    if seconds > _MOST_DAYS * _SECONDS["d"]:
        raise ValueError(f"{_quoted(raw)} is too long: at most {_MOST_DAYS}d")
    return float(seconds)


def _quoted(text: str | float) -> str:
    return f'"{text}"' if isinstance(text, str) else shown(text)


def _spelled_seconds(text: str) -> Fraction:
    number, unit = _split(text, f"a duration: {_A_DURATION}")
    if unit not in _SECONDS:
        raise ValueError(f'"{text}" is not a duration: unknown unit "{unit}" (us, ms, s, m, h or d)')
    return number * _SECONDS[unit]


def _plain_seconds(seconds: float) -> float:
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{seconds} is not a duration: {_A_DURATION}, 0 or more")
    return seconds


def _split(text: str, wanted: str) -> tuple[Fraction, str]:
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise ValueError(f'"{text}" is not {wanted}')
    return Fraction(found[1]), found[2]


def _why_no_size_unit(unit: str) -> str:
    if re.fullmatch("[KMGTPkmgtp]i?b", unit):
        return f'"{unit}" reads as bits (write {unit[:-1]}B for bytes)'
    return f'unknown unit "{unit}" (K, M, G, T or KiB, MiB, ... count in 1024; KB, MB, ... in 1000)'


def format_size(nbytes: int) -> str:
    """Returns `nbytes` for people, rounded to one decimal: "512 B", "1.5 GiB"."""
    if abs(nbytes) < 1024:
        return f"{nbytes} B"
    power = 1
    # Otherwise 1023.96 would be printed as 1024.0 of the smaller unit.
    while power < len(_LETTERS) and round(abs(nbytes) / 1024**power, 1) >= 1024:
        power += 1
    return f"{nbytes / 1024**power:.1f} {_LETTERS[power - 1]}iB"


def counted(number: int, noun: str) -> str:
    """Returns the number with its noun, in the plural unless it is 1: "1 page", "1,024 pages"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def spell_size(nbytes: int) -> str:
    """Returns `nbytes` exactly, as a text that `parse_size` reads: "1GiB", "1020MiB", "4097"."""
    for power in range(len(_LETTERS), 0, -1):
        if nbytes and nbytes % 1024**power == 0:
            return f"{nbytes // 1024**power}{_LETTERS[power - 1]}iB"
    return str(nbytes)


def spell_duration(seconds: float) -> str:
    """Returns `seconds` to the microsecond, in the largest unit in which it is whole: "1m", "90s", "250ms"."""
    micros = round(seconds * 1_000_000)
    for unit in _SPELLED_SECONDS:
        step = int(_SECONDS[unit] * 1_000_000)
        if micros and micros % step == 0:
            return f"{micros // step}{unit}"
    return "0s"
