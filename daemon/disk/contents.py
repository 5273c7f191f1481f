"""What a tier holds goes into the index: the oldest as the coldest, a little at a time between requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from ...shm._core import Owner
from ...shm.points import point
from ...shm.protocol import Space
from ...tiers.messages import Holds
from ..labels import printable

_AT_ONCE: Final = 10_000
_NO_SPACE: Final = 0xFFFFFFFF


class Contents:
    """Collects what a worker reports, then tells the index.

    The order in which pages were last used before is kept; all are colder than what was used since the host started.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._keys: list[bytes] = []
        self._sizes: list[bytes] = []
        self._stamps: list[bytes] = []
        self._spaces: list[npt.NDArray[np.uint32]] = []
        self._table: dict[Space, int] = {}
        self._numbers: list[int] = []

    def add(self, held: Holds) -> None:
        """One batch."""
        table = np.array([self._place(space) for space in held.table], dtype="<u4")
        self._keys.append(held.keys)
        self._sizes.append(held.sizes)
        self._stamps.append(held.stamps)
        self._spaces.append(table[np.frombuffer(held.spaces, dtype="<u4")])

    def __len__(self) -> int:
        return sum(map(len, self._sizes)) // 8

    async def tell(self, flushed: Callable[[bytes], bool]) -> bytes:
        """Tells the index all of it but namespaces that were flushed, also meanwhile; the keys of all their pages.

        flushed: whether the namespace with this digest was.
        """
        keys = np.frombuffer(b"".join(self._keys), dtype="V32")
        sizes = np.frombuffer(b"".join(self._sizes), dtype="<u8")
        order = np.argsort(np.frombuffer(b"".join(self._stamps), dtype="<u8"), kind="stable")
        spaces = np.concatenate([np.empty(0, dtype="<u4"), *self._spaces])
        numbers = np.array(self._numbers, dtype="<u4")
        for first in range(0, len(order), _AT_ONCE):
            at = np.arange(first, min(first + _AT_ONCE, len(order)))
            at = at[~self._among(flushed)[spaces[order[at]]]]
            which, ticks = order[at], (at + 1).astype("<u8").tobytes()
            told = numbers[spaces[which]].tobytes()
            self._owner.disk_report(keys[which].tobytes(), sizes[which].tobytes(), told, ticks)
            point("contents.told")
            await asyncio.sleep(0)
        drops: bytes = keys[self._among(flushed)[spaces]].tobytes()
        return drops

    def _among(self, flushed: Callable[[bytes], bool]) -> npt.NDArray[np.bool_]:
        """Of each namespace in the table."""
        return np.array([flushed(space.digest) for space in self._table], dtype=bool)

    def _place(self, space: Space) -> int:
        """Where it is in the table."""
        if space not in self._table:
            number = self._owner.space(
                space.digest, printable(space.name), space.page_tokens, space.window, space.group
            )
            self._table[space] = len(self._numbers)
            self._numbers.append(number if number >= 0 else _NO_SPACE)
        return self._table[space]
