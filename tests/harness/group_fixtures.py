"""Groups of state over an index, with each page in memory, on disk or nowhere, and the hit that a match must find."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from anonymous_segments import DAY_NS, Memory, attach
from page_reservations import reserve
from pagetier.shm._core import (
    KEY_BYTES,
    AttachmentCounts,
    Observer,
    Owner,
    Pins,
    Session,
    TierFlag,
    WriteResult,
    WriteRule,
)
from pagetier.shm.geometry import Geometry
from pagetier.shm.page_rows import PAGES_TO_WRITE

EVERYTHING = 2**63 - 1
_FRAMES = 128
_DISK_FRAMES = 128


class Location(IntEnum):
    NOWHERE = 0
    DISK = 1
    MEMORY = 2


@dataclass(frozen=True)
class Chain:
    """One group: the place and the name of each of its pages. Pages with the same name are the same page."""

    page_tokens: int
    needs: int
    names: Sequence[int]
    places: Sequence[Location]

    def needed(self, tokens: int) -> range:
        return range(max(0, tokens - self.needs) // self.page_tokens, tokens // self.page_tokens)

    def ends(self, page: int) -> int:
        return (page + 1) * self.page_tokens


def key_of(name: int) -> bytes:
    return name.to_bytes(2, "little") * 16


def agreed(chains: Sequence[Chain], limit: int, least: Location) -> int:
    """Returns the expected hit by trying every possible one."""
    grain = math.lcm(*(chain.page_tokens for chain in chains))
    longest = min(limit, *(len(chain.places) * chain.page_tokens for chain in chains))
    hits = range(0, longest + 1, grain)
    return max(
        tokens
        for tokens in hits
        if all(chain.places[page] >= least for chain in chains for page in chain.needed(tokens))
    )


class Grouped:
    """An index with a disk tier but without a disk, and a process that matches."""

    def __init__(self, chains: Sequence[Chain]) -> None:
        self.chains = chains
        self.memory = Memory(Geometry(4096, _FRAMES, 2 * _FRAMES, 2))
        self.owner: Owner = self.memory.adopted()
        self.session: Session = self.memory.session(attach(self.owner, 1))
        self.owner.disk_open(_DISK_FRAMES, WriteRule.EVICTED)
        self._space = self.owner.space(bytes(KEY_BYTES), "test", 16, 0, 0)
        where = {name: place for chain in chains for name, place in zip(chain.names, chain.places, strict=True)}
        self._store(name for name, place in where.items() if place is Location.DISK)
        self._write_out()
        self._store(name for name, place in where.items() if place is Location.MEMORY)
        self.owner.settle()
        self._known = {name: self._entry(name) for name, place in where.items() if place is Location.MEMORY}

    def _entry(self, name: int) -> tuple[bytes, bytes]:
        with self.session.match(Pins, None, key_of(name)) as pins:
            return pins.entries, pins.serials

    def _store(self, names: Iterable[int]) -> None:
        keys = b"".join(map(key_of, names))
        sizes = np.ones(len(keys) // KEY_BYTES, np.uint64)
        _, entries, serials = reserve(self.owner, self.session.slot, self._space, 0, 1, DAY_NS, keys, sizes)
        assert self.session.publish(entries, serials, 0) == b"\1" * len(sizes)

    def _write_out(self) -> None:
        self.owner.settle()
        pages = self.owner.start_writes(_DISK_FRAMES, 10 * _FRAMES)
        self.owner.end_writes(pages, bytes([WriteResult.DONE]) * PAGES_TO_WRITE.count(pages))
        self.owner.evict(_FRAMES, 10 * _FRAMES)

    def match(self, limit: int = EVERYTHING) -> tuple[int, int, tuple[Pins, ...]]:
        """Matches all groups, with the names of the keys as context."""
        asked = (
            (chain.names, b"".join(map(key_of, chain.names)), chain.page_tokens, chain.needs) for chain in self.chains
        )
        tokens, reach, _, pins = self.session.match_groups(Pins, tuple(asked), limit)
        return tokens, reach, pins

    def named(self, tokens: int) -> set[int]:
        """Returns the names of the pages that a hit at `tokens` needs."""
        return {chain.names[page] for chain in self.chains for page in chain.needed(tokens)}

    def end_of(self, name: int) -> int:
        """Returns the token at which a page ends. The caller guarantees that its name is unique."""
        return next(chain.ends(chain.names.index(name)) for chain in self.chains if name in chain.names)

    def in_memory(self) -> set[int]:
        """Returns the names of the pages in memory without looking them up, so that they do not count as used."""
        return {name for name, (entry, serial) in self._known.items() if self._holds(entry, serial)}

    def _holds(self, entry: bytes, serial: bytes) -> bool:
        with self.session.repin(Pins, None, entry, serial) as pins:
            return len(pins) == 1

    def leave_memory(self) -> list[int]:
        """Evicts all pages that can be evicted from memory, and returns their names in this order."""
        return list(self._leaving(lambda: self.owner.evict(_FRAMES, 1), self.in_memory))

    def leave_disk(self) -> list[int]:
        """Evicts all pages that can be evicted from disk, and returns their names in this order."""
        names = {key_of(name): name for chain in self.chains for name in chain.names}
        self.owner.disk_shrink(_DISK_FRAMES - self.owner.header().disk_used_frames)
        left = []
        while self.owner.header().disk_used_frames:
            self.owner.disk_shrink(1)
            left.append(names[self.owner.disk_drops()])
        return left

    def _leaving(self, evict: Callable[[], int], there: Callable[[], set[int]]) -> Iterator[int]:
        before = there()
        while evict():
            after = there()
            yield from before - after
            before = after

    def counts(self) -> AttachmentCounts:
        """Returns the counters of the process."""
        index, locks, _ = self.memory.descriptors
        return Observer(index, locks).counts()

    def sound(self) -> bool:
        """Returns whether no page is pinned and the index is consistent."""
        self.owner.settle()
        in_use = self.owner.flush(-1, TierFlag.BOTH)[1]
        return not in_use and self.owner.check_integrity() == []
