"""What a tier holds goes into the index: the oldest as the coldest, a little at a time between requests."""

from __future__ import annotations

import asyncio
from array import array
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
        self._numbers: dict[Space, int] = {}

    def add(self, held: Holds) -> None:
        """One batch."""
        numbers = np.array([self._number(space) for space in held.table], dtype="<u4")
        self._keys.append(held.keys)
        self._sizes.append(held.sizes)
        self._stamps.append(held.stamps)
        self._spaces.append(numbers[np.frombuffer(held.spaces, dtype="<u4")])

    def __len__(self) -> int:
        return sum(map(len, self._sizes)) // 8

    async def tell(self) -> None:
        """Tells the index all of it."""
        keys = np.frombuffer(b"".join(self._keys), dtype="V32")
        sizes = np.frombuffer(b"".join(self._sizes), dtype="<u8")
        order = np.argsort(np.frombuffer(b"".join(self._stamps), dtype="<u8"), kind="stable")
        spaces = np.concatenate([np.empty(0, dtype="<u4"), *self._spaces])
        for first in range(0, len(order), _AT_ONCE):
            which = order[first : first + _AT_ONCE]
            ticks = array("Q", range(first + 1, first + 1 + len(which)))
            self._owner.disk_report(keys[which].tobytes(), sizes[which].tobytes(), spaces[which].tobytes(), ticks)
            point("contents.told")
            await asyncio.sleep(0)

    def _number(self, space: Space) -> int:
        if space not in self._numbers:
            number = self._owner.space(
                space.digest, printable(space.name), space.page_tokens, space.window, space.group
            )
            self._numbers[space] = number if number >= 0 else _NO_SPACE
        return self._numbers[space]
