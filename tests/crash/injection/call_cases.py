"""Chooses the cases in which a call of the disk worker goes wrong."""

from __future__ import annotations

import errno
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from injection.injector import CALLS, CHANGES, WRITES, Action, Case, Site

_ROOM: Final = WRITES | {Site.FALLOCATE, Site.MKDIR, Site.OPEN}
"""The calls that need free blocks or a new name."""
_LASTING: Final = (
    Case(Action.FAIL, _ROOM, error=errno.ENOSPC, lasting=True),
    Case(Action.FAIL, CALLS, error=errno.EIO, lasting=True),
    Case(Action.FAIL, WRITES, "data.mdb", error=errno.EIO, lasting=True),
    Case(Action.HANG, CALLS, lasting=True),
)


class Part(msgspec.Struct, frozen=True):
    """A part of a sweep, for one test: number `number` of `count`. `few` limits the number of cases; 0: no limit."""

    number: int
    count: int
    few: int

    def of(self, cases: Sequence[Case]) -> list[Case]:
        """Returns the cases of this part."""
        return _some(cases, self.number, self.few) if self.few else list(cases[self.number :: self.count])


def call_cases(number: Counter[Site]) -> list[Case]:
    """Returns all ways in which each of these calls can go wrong, alone or with all later ones."""
    changes = sum(number[site] for site in CHANGES)
    found = [Case(action, CHANGES, number=at + 1) for at in range(changes) for action in (Action.DIE, Action.TEAR)]
    for action, sites, error in (
        (Action.HANG, CALLS, 0),
        (Action.FAIL, CALLS, errno.EIO),
        (Action.FAIL, _ROOM, errno.ENOSPC),
        (Action.SHORTEN, WRITES | {Site.PREAD}, 0),
    ):
        for site in sorted(sites):
            found += [Case(action, frozenset({site}), number=at + 1, error=error) for at in range(number[site])]
    return found + [one for case in _LASTING for one in _lasting(number, case)]


def _lasting(number: Counter[Site], case: Case) -> Iterator[Case]:
    """Yields the case from the first call on, and from the middle on."""
    count = sum(number[site] for site in case.sites)
    for at in sorted({1, (count + 1) // 2}) if count else []:
        yield msgspec.structs.replace(case, number=at)


def _some(cases: Sequence[Case], shift: int, count: int) -> list[Case]:
    """Returns a few cases of different kinds, without the last ones of each kind, which may not be reached."""
    kinds = [list(group) for _, group in itertools.groupby(sorted(cases, key=_when), key=_kind)]
    chosen = [(kinds[number % len(kinds)], 5 * number) for number in range(shift, shift + count)]
    return [kind[number % ((len(kind) + 1) // 2)] for kind, number in chosen]


def _kind(case: Case) -> tuple[int, int, bool]:
    return case.action.value, case.error, case.lasting


def _when(case: Case) -> tuple[tuple[int, int, bool], int]:
    return _kind(case), case.number
