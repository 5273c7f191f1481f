"""The workload of a disk tier that is recorded: every kind of change to its files, some of them often.

Run as a process with its folder, the name of a life, the name of a deliberate bug, and the name of a store.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from disk_stores import StoreKind, open_kind
from oracle.page_contents import content
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.protocol import Space
from pagetier.tiers.base import NO_ROOM, Outgoing
from pagetier.tiers.disk.store import DiskStore
from power_loss import mutants
from store_pages import aligned

FRAME: Final = 4096
SEED: Final = 8


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a DiskStore, without its folder."""

    cap: int
    frame: int = FRAME
    environments: int = 2
    store: StoreKind = "lmdb"

    def opened(self, folder: Path) -> DiskStore:
        """Returns the opened tier. Raises TierError."""
        return open_kind(self.store, folder, self.cap, self.frame, self.environments)


def key_of(number: int) -> bytes:
    """Returns the key of the page with a number."""
    return hashlib.sha256(b"power %d" % number).digest()


SPACES: Final = (Space(b"s" * KEY_BYTES, "first", 16), Space(b"o" * KEY_BYTES, "second", 64, 1, 512))
TERMS: Final = Terms(cap=3 << 20)
SMALLER: Final = Terms(cap=1792 << 10)
_PAGES_OF_A_LIFE: Final = 10_000
NUMBERS: Final = {
    key_of(number): number
    for life in range(4)
    for number in range(life * _PAGES_OF_A_LIFE, life * _PAGES_OF_A_LIFE + 300)
}
_SIZES: Final = (3 * FRAME - 7, FRAME, 5000, 9 * FRAME)


class RecordedTier:
    """A tier that writes its promises to the stream. Pages are numbered in the order in which they are stored."""

    def __init__(self, folder: Path, first: int = 0, store: StoreKind = "lmdb") -> None:
        self._folder = folder
        self._store = store
        self._next = first
        self._held: list[int] = []
        self.tier: DiskStore

    def open(self, terms: Terms) -> None:
        self.tier = msgspec.structs.replace(terms, store=self._store).opened(self._folder)
        self._held = sorted(NUMBERS[page.key] for held in self.tier.contents() for page in held)
        self.say("opened", [])

    def close(self) -> None:
        self.tier.close()
        self.say("synced", [])

    def sync(self) -> None:
        self.tier.sync()
        self.say("synced", [])

    def store(self, pages: int, drops: int = 0) -> None:
        """Stores new pages and drops `drops` old ones in the same write; the tier may also evict the oldest."""
        wanted = list(range(self._next, self._next + pages))
        self._next += pages
        gone = self._held[:drops]
        self.say("dropping", gone)
        self.say("storing", wanted)
        written = self.tier.write([key_of(number) for number in gone], [outgoing(number) for number in wanted])
        assert not written.undropped
        assert set(written.reasons) <= {"", NO_ROOM}, written.reasons
        stored = [number for number, done in zip(wanted, written.stored, strict=True) if done]
        self._held = [*self._held[drops:], *stored]
        self.say("stored", stored)

    def store_again(self, pages: int) -> None:
        """Stores the oldest pages again, in place of their copies."""
        numbers = self._held[:pages]
        assert all(self.tier.write([], [outgoing(number) for number in numbers]).stored)

    def fill(self) -> None:
        """Stores pages until each new page needs the eviction of another."""
        while self._free() > 40:
            self.store(6)

    def turn_over(self, times: int) -> None:
        """Stores and drops pages in a full tier."""
        for _ in range(times):
            self.store(6, drops=8)

    def _free(self) -> int:
        return self.tier.capacity - self.tier.state().used_frames

    def open_smaller(self, terms: Terms) -> None:
        """Opens the tier with a smaller limit, which may evict any page."""
        self.say("shrinking", [])
        self.open(terms)

    def say(self, word: str, numbers: Iterable[int]) -> None:
        """Writes a mark to the stream, for Promises."""
        _mark(f"{word} {' '.join(map(str, numbers))}")


def outgoing(number: int) -> Outgoing:
    """Returns the page with this number, whose size and namespace also follow from the number."""
    size = _SIZES[number % len(_SIZES)]
    nbytes = -(-size // FRAME) * FRAME
    whole = aligned(nbytes, content(key_of(number), SEED, size).ljust(nbytes, b"\xee"))
    frames = [whole[at : at + FRAME] for at in range(0, len(whole), FRAME)]
    return Outgoing(key_of(number), SPACES[number % 2], size, number, frames)


def fill_and_close(recorded: RecordedTier) -> None:
    """Fills a new tier, with a sync now and then, and closes it."""
    recorded.open(TERMS)
    recorded.store(8)
    recorded.sync()
    recorded.store(8, drops=3)
    recorded.store_again(4)
    recorded.sync()
    recorded.fill()
    recorded.turn_over(4)
    recorded.sync()
    recorded.turn_over(3)
    recorded.close()


def shrink_and_die(recorded: RecordedTier) -> None:
    """Opens the tier as it was left, uses it, makes it smaller, uses it, and dies."""
    recorded.open(TERMS)
    recorded.turn_over(1)
    recorded.close()
    recorded.open_smaller(SMALLER)
    recorded.turn_over(2)
    recorded.sync()
    recorded.turn_over(2)


def reopen_and_distrust(recorded: RecordedTier) -> None:
    """Opens the tier as the dead process left it, and marks it for verification."""
    recorded.open(SMALLER)
    recorded.turn_over(2)
    recorded.tier.distrust()
    recorded.turn_over(1)


def verify_and_use(recorded: RecordedTier) -> None:
    """Opens the tier, which has to be verified, and uses it."""
    recorded.open(SMALLER)
    recorded.turn_over(2)
    recorded.sync()
    recorded.turn_over(2)


LIVES: Final = {
    "fill": fill_and_close,
    "shrink": shrink_and_die,
    "distrust": reopen_and_distrust,
    "verify": verify_and_use,
}


def _mark(text: str) -> None:
    here = ctypes.CDLL(None)
    if hasattr(here, "record_mark"):  # otherwise the process is not recorded
        here.record_mark(text.encode())


def main() -> None:
    """Runs one life and ends as if killed; its page numbers do not overlap with those of the others."""
    folder, life, mistake, store = sys.argv[1:]
    mutants.make(mistake)
    first = _PAGES_OF_A_LIFE * list(LIVES).index(life)
    LIVES[life](RecordedTier(Path(folder), first, msgspec.convert(store, StoreKind)))
    os._exit(0)


if __name__ == "__main__":
    main()
