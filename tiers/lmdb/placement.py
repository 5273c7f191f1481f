"""Chooses the environment of a page: the one that has its key, else the one with the most room."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pagetier.tiers.base import Outgoing
from pagetier.tiers.lmdb import reader
from pagetier.tiers.lmdb.environment import Environment
from pagetier.tiers.lmdb.records import Header, frames_of


class Share(msgspec.Struct):
    """The work of one environment. `left`: frames that still fit; `pages`: their indices in the batch."""

    left: int
    drops: list[bytes]
    pages: list[int]


def share(
    environments: Sequence[Environment], drops: Sequence[bytes], pages: Sequence[Outgoing], frame_bytes: int
) -> list[Share]:
    """Returns each environment's share. Pages that fit nowhere are in none of them."""
    shares = [Share(one.shape.room - one.used, [], []) for one in environments]
    homes: dict[bytes, tuple[Share, int]] = {}
    dropped = set(drops)
    for environment, its in zip(environments, shares, strict=True):
        _find_drops(environment, its, list(dict.fromkeys(drops)), frame_bytes)
        for page, header in zip(pages, reader.headers(environment, [page.key for page in pages]), strict=True):
            if header is not None:
                homes[page.key] = (its, 0 if page.key in dropped else _frames(header, frame_bytes))
    for number, page in enumerate(pages):
        _place(shares, homes.get(page.key), number, len(page.frames))
    return shares


def _find_drops(environment: Environment, its: Share, drops: Sequence[bytes], frame_bytes: int) -> None:
    for key, header in zip(drops, reader.headers(environment, drops), strict=True):
        if header is not None:
            its.drops.append(key)
            its.left += _frames(header, frame_bytes)


def _place(shares: Sequence[Share], home: tuple[Share, int] | None, number: int, frames: int) -> None:
    its, freed = home if home is not None else (max(shares, key=lambda one: one.left), 0)
    if its.left + freed >= frames:
        its.left += freed - frames
        its.pages.append(number)


def _frames(header: Header, frame_bytes: int) -> int:
    return frames_of(header.size, frame_bytes)
