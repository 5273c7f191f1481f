"""Chooses at random which unsynced writes reach the disk before the power fails, in several ways."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from random import Random
from typing import Final

from power_loss.disk_model import Change, ChooseContents, ChooseNames, Survived, sectors_of
from power_loss.write_stream import Kind

_METAS_END: Final = 2 * 4096
_VALUE: Final = 4096  # a write of more than a page is a value, or several pages of trees


class Way(StrEnum):
    """The ways to choose. METAS are the two pages that hold the roots of all trees of LMDB."""

    NOTHING_LOST = "nothing is lost"
    ALL_LOST = "all is lost"
    ANY = "each write or not"
    MOST = "one in twenty is lost"
    FEW = "one in twenty is there"
    ONE_LOST = "one is lost"
    ONE_THERE = "one alone is there"
    EARLIER = "all up to a moment"
    METAS_FIRST = "metas, and of the rest each or not"
    METAS_LAST = "all but the metas"
    VALUES_LOST = "all but some of the values"
    RECORDS_LOST = "bytes of frames, and nothing else"
    TORN = "each sector or not"
    ONE_TORN = "of one write each sector or not"


def choose(way: Way, chance: Random) -> ChooseContents:
    """Returns a random choice for History.left()."""
    return lambda pending: _chosen(way, pending, chance)


def choose_names(way: Way, chance: Random) -> ChooseNames:
    """Returns the same for names."""
    if way is Way.NOTHING_LOST:
        return len
    if way is Way.ALL_LOST:
        return lambda _: 0
    return lambda pending: chance.choice((0, len(pending), chance.randrange(len(pending) + 1)))


def _chosen(way: Way, pending: Sequence[Change], chance: Random) -> list[Survived]:
    if way in _CHANCES:
        share = _CHANCES[way]
        return [Survived(one) for one in pending if chance.random() < share]
    if way is Way.RECORDS_LOST:
        return [Survived(one) for one in pending if _is_value(one)]
    if way in (Way.TORN, Way.ONE_TORN):
        return _torn(way, pending, chance)
    return [Survived(one) for one in _picked(way, pending, chance)]


_CHANCES: Final = {Way.NOTHING_LOST: 1.0, Way.ALL_LOST: 0.0, Way.ANY: 0.5, Way.MOST: 0.95, Way.FEW: 0.05}


def _picked(way: Way, pending: Sequence[Change], chance: Random) -> list[Change]:
    one = chance.randrange(len(pending)) if pending else 0
    match way:
        case Way.ONE_LOST:
            return [*pending[:one], *pending[one + 1 :]]
        case Way.ONE_THERE:
            return list(pending[one : one + 1])
        case Way.EARLIER:
            return list(pending[:one])
        case Way.METAS_FIRST:
            return [change for change in pending if _is_meta(change) or chance.random() < 0.5]
        case Way.METAS_LAST:
            return [change for change in pending if not _is_meta(change)]
        case _:
            return [change for change in pending if not _is_value(change) or chance.random() < 0.7]


def _is_meta(change: Change) -> bool:
    return change.event.kind is Kind.WRITE and change.event.offset < _METAS_END and not change.of_frames


def _is_value(change: Change) -> bool:
    is_large = len(change.event.data) > _VALUE and not _is_meta(change)
    return change.event.kind is Kind.WRITE and (change.of_frames or is_large)


def _torn(way: Way, pending: Sequence[Change], chance: Random) -> list[Survived]:
    writes = [change.at for change in pending if change.event.kind is Kind.WRITE]
    hit = {chance.choice(writes)} if way is Way.ONE_TORN and writes else set(writes)
    return [Survived(one, _some_sectors(one, chance) if one.at in hit else None) for one in pending]


def _some_sectors(change: Change, chance: Random) -> frozenset[int]:
    return frozenset(sector for sector in sectors_of(change) if chance.random() < 0.5)
