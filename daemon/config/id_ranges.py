"""The settings for users and groups: names, numbers and ranges of numbers."""

from __future__ import annotations

import grp
import pwd
import re
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from pagetier.daemon.config.value_types import Setting
from pagetier.shm.units import shown

_MAX_ID: Final = 2**32 - 2
_BARE_ID: Final = re.compile("[0-9]{1,10}")
_RANGE: Final = re.compile("([0-9]*)-([0-9]*)")


class IdRange(msgspec.Struct, frozen=True):
    """User or group IDs from `first` to `last`, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    def __contains__(self, number: int) -> bool:
        return self.first <= number <= self.last


IdRanges = tuple[IdRange, ...]


def contains_any(ranges: IdRanges, numbers: Iterable[int]) -> bool:
    """Returns whether one of the numbers is in one of the ranges."""
    return any(number in each for number in numbers for each in ranges)


def users_setting(help: str) -> Setting:
    """Returns a setting for user IDs: names, numbers or ranges, in a list or in one string with commas."""
    return _ids_setting(help, "user", lambda name: pwd.getpwnam(name).pw_uid)


def groups_setting(help: str) -> Setting:
    """Returns a setting for group IDs: names, numbers or ranges, in a list or in one string with commas."""
    return _ids_setting(help, "group", lambda name: grp.getgrnam(name).gr_gid)


def group_setting(help: str) -> Setting:
    """Returns a setting for at most one group, given as a name or a number; its value is a tuple of zero or one ID."""
    several = groups_setting(help)

    def read(raw: object) -> tuple[int, ...]:
        ranges: IdRanges = several.read([raw] if isinstance(raw, int) else raw)
        if len(ranges) > 1 or any(each.first != each.last for each in ranges):
            raise ValueError(f"{shown(raw)} is more than one group")
        return tuple(each.first for each in ranges)

    return Setting(read=read, show=several.show, metavar="GROUP", help=help)


def _ids_setting(help: str, noun: str, find_id: Callable[[str], int]) -> Setting:
    def read(raw: object) -> IdRanges:
        return tuple(dict.fromkeys(_range(item, noun, find_id) for item in _items(raw, noun)))

    metavar = f"{noun.upper()},..."
    return Setting(read=read, show=lambda ids: ",".join(map(str, ids)), metavar=metavar, help=help)


def _items(raw: object, noun: str) -> list[object]:
    if isinstance(raw, str):
        return [item.strip() for item in raw.split(",")] if raw.strip() else []
    if isinstance(raw, list):
        return raw
    raise ValueError(f'{shown(raw)} is not a list of {noun}s, such as ["alice", 1000, "65536-131071"]')


def _range(item: object, noun: str, find_id: Callable[[str], int]) -> IdRange:
    if isinstance(item, bool) or not isinstance(item, (str, int)) or item == "":
        raise ValueError(f"{shown(item)} is not the name, the number or a range of a {noun}")
    if _BARE_ID.fullmatch(str(item)) and int(item) <= _MAX_ID:
        return IdRange(int(item), int(item))
    if found := _RANGE.fullmatch(str(item)):
        return _range_of_numbers(item, *found.groups())
    try:
        number = find_id(str(item))
    except (KeyError, ValueError):
        raise ValueError(f"there is no {noun} {shown(item)} on this host") from None
    return IdRange(number, number)


def _range_of_numbers(item: object, first: str, last: str) -> IdRange:
    if not _BARE_ID.fullmatch(first) or not _BARE_ID.fullmatch(last):
        raise ValueError(f'{shown(item)} is not a range: write FIRST-LAST, such as "65536-131071"')
    if not int(first) <= int(last) <= _MAX_ID:
        raise ValueError(
            f"{shown(item)} is not a range: the first number must not be above the last, {_MAX_ID} at most"
        )
    return IdRange(int(first), int(last))
