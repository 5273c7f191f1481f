"""A batch of pages that are written to the disk together."""

from __future__ import annotations

from array import array
from typing import Final

import msgspec

from pagetier.shm import clock
from pagetier.shm._core import HISTORY_BYTES, KEY_BYTES, NamespaceRecord
from pagetier.shm.protocol import Space
from pagetier.tiers.worker_protocol import Write

_NS: Final = 1e9


class WriteBatch(msgspec.Struct, frozen=True):
    """Pages chosen for writing, as one packed array for each of their properties."""

    entries: bytes
    serials: bytes
    keys: bytes
    sizes: bytes
    spaces: bytes
    ticks: bytes
    reservations: bytes
    histories: bytes

    def __len__(self) -> int:
        return len(self.entries) // 4

    def only(self, which: list[int]) -> WriteBatch:
        """Returns a batch of the pages at these positions, in this order."""
        widths = (4, 8, KEY_BYTES, 8, 4, 8, 4, HISTORY_BYTES)
        fields = (getattr(self, name) for name in self.__struct_fields__)
        return WriteBatch(
            *(b"".join(field[i * n : i * n + n] for i in which) for field, n in zip(fields, widths, strict=True))
        )


def write_command(number: int, pages: WriteBatch, drops: bytes, offset: int, spaces: list[NamespaceRecord]) -> Write:
    """Returns the command to drop and to write these pages.

    Args:
        number: The number of the command.
        pages: The pages to write.
        drops: The keys of the pages to drop first.
        offset: The stamp of a page on disk minus its tick in memory.
        spaces: The namespaces of the index.
    """
    numbers = array("I", pages.spaces)
    used = sorted(set(numbers))
    position = {space: i for i, space in enumerate(used)}
    known = {space.number: space for space in spaces}
    return Write(
        number,
        drops,
        pages.entries,
        pages.serials,
        pages.keys,
        pages.sizes,
        array("Q", [max(0, tick + offset) for tick in array("Q", pages.ticks)]).tobytes(),
        array("I", [position[space] for space in numbers]).tobytes(),
        tuple(_space(known[space]) for space in used),
        pages.histories,
    )


def stamp_offset(newest: int) -> int:
    """Returns the difference between ticks and stamps, which order the pages on disk across restarts of the host.

    A later write gets a later stamp even if the host's clock was set back, or is wrong until the network is up.
    Otherwise the newest pages would be the first to leave the disk.
    """
    return max(int(clock.date() * _NS), newest) - clock.now_ns()


def _space(record: NamespaceRecord) -> Space:
    return Space(record.digest, record.name, record.page_tokens, record.group, record.window)
