"""Damages the pages of a file in many ways."""

from __future__ import annotations

from enum import StrEnum
from random import Random
from typing import Final

import msgspec

from disk_corruption.file_anatomy import PAGE, Anatomy, Part

_SECTOR: Final = 512


class Harm(StrEnum):
    """The kinds of damage to a page. OLDER: its content at an earlier sync; SWAPPED, COPIED: with a page of its kind.

    COUNT damages one fixed page instead of the chosen one, because chance would hardly find that bit. FLAG damages the
    flags that define the kind of a page.
    """

    BIT = "a bit is flipped"
    HEAD_BIT = "a bit of its header, or of its first nodes, is flipped"
    BITS = "twenty bits are flipped"
    ZEROED = "it is zeroed"
    SECTOR_ZEROED = "a sector of it is zeroed"
    NOISE = "it is noise"
    OLDER = "it is an older version of itself"
    SECTOR_OLDER = "a sector of it is older"
    SWAPPED = "it is swapped with a page of its kind"
    COPIED = "it is a copy of a page of its kind"
    FOREIGN = "it is a copy of any other page"
    COUNT = "a bit of the number of frames or records that LMDB counts is flipped"
    FLAG = "a bit of its flags is flipped"


_OTHERS: Final = (Harm.COPIED, Harm.FOREIGN)
_WHERE: Final = {Harm.HEAD_BIT: range(200), Harm.FLAG: range(10, 12)}


class Damage(msgspec.Struct, frozen=True):
    """A damage of a series; its number and the seed determine all random choices."""

    number: int
    part: Part
    harm: Harm


class IntactFile:
    """A file, the numbers of its pages by their kinds, and an older version of the same length."""

    def __init__(self, data: bytes, older: bytes, anatomy: Anatomy | None = None) -> None:
        self.data = data
        self._anatomy = anatomy
        self._older = older.ljust(len(data), b"\0")

    def harmed(self, damage: Damage, chance: Random) -> bytes:
        """Returns the file with the damage."""
        file = bytearray(self.data)
        if damage.harm is Harm.COUNT:
            assert self._anatomy is not None
            file[self._anatomy.counted_at + chance.randrange(8)] ^= 1 << chance.randrange(8)
            return bytes(file)
        page = chance.choice(self._of(damage.part))
        for number, content in self._after(page, damage, chance).items():
            file[number * PAGE : (number + 1) * PAGE] = content
        return bytes(file)

    def _of(self, part: Part) -> list[int]:
        """Returns the numbers of all pages of a kind. In a file of frames, which has no anatomy, all are SLOT."""
        return self._anatomy.of(part) if self._anatomy is not None else list(range(len(self.data) // PAGE))

    def _page(self, number: int) -> bytes:
        return self.data[number * PAGE : (number + 1) * PAGE]

    def _after(self, page: int, damage: Damage, chance: Random) -> dict[int, bytes]:
        content = self._page(page)
        kin = chance.choice([one for one in self._of(damage.part) if one != page] or [page])
        if damage.harm is Harm.SWAPPED:
            return {page: self._page(kin), kin: content}
        if damage.harm in _OTHERS:
            any_page = chance.randrange(len(self.data) // PAGE)
            return {page: self._page(kin if damage.harm is Harm.COPIED else any_page)}
        older = self._older[page * PAGE : (page + 1) * PAGE]
        return {page: _changed(content, older, damage.harm, chance)}


def _changed(content: bytes, older: bytes, harm: Harm, chance: Random) -> bytes:
    match harm:
        case Harm.OLDER:
            return older
        case Harm.ZEROED:
            return bytes(PAGE)
        case Harm.NOISE:
            return chance.randbytes(PAGE)
        case Harm.SECTOR_OLDER | Harm.SECTOR_ZEROED:
            return _with_sector(content, older if harm is Harm.SECTOR_OLDER else bytes(PAGE), chance)
        case _:
            return _flipped(content, harm, chance)


def _with_sector(content: bytes, other: bytes, chance: Random) -> bytes:
    at = chance.randrange(PAGE // _SECTOR) * _SECTOR
    return content[:at] + other[at : at + _SECTOR] + content[at + _SECTOR :]


def _flipped(content: bytes, harm: Harm, chance: Random) -> bytes:
    flipped = bytearray(content)
    where = _WHERE.get(harm, range(PAGE))
    for _ in range(20 if harm is Harm.BITS else 1):
        flipped[chance.choice(where)] ^= 1 << chance.randrange(8)
    return bytes(flipped)
