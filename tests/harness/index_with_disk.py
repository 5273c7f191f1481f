"""A daemon's index with a disk tier but without a disk, for tests of the binding."""

from __future__ import annotations

import numpy as np

from anonymous_segments import DAY_NS, Memory, attach
from numbered_pages import read_page, write_page
from page_reservations import reserve
from pagetier.shm._core import KEY_BYTES, Owner, Pins, ReserveOutcome, Session, WriteResult
from pagetier.shm.geometry import Geometry
from pagetier.shm.page_rows import PAGES_TO_READ, PAGES_TO_WRITE, PageToRead

FRAME = 4096
GEOMETRY = Geometry(frame_bytes=FRAME, frames=8, entries=12, spaces=2)


def key(name: str) -> bytes:
    return name.encode().ljust(KEY_BYTES, b".")


def u32(*values: int) -> bytes:
    return np.array(values, np.uint32).tobytes()


def u64(*values: int) -> bytes:
    return np.array(values, np.uint64).tobytes()


def ints(packed: bytes, width: int) -> list[int]:
    numbers: list[int] = np.frombuffer(packed, f"<u{width}").tolist()
    return numbers


class Place:
    """An index, a process that stores and also acts as the disk worker, and no disk."""

    def __init__(self) -> None:
        self.memory = Memory(GEOMETRY)
        self.owner: Owner = self.memory.adopted()
        self.slot = attach(self.owner, 1)
        self.session: Session = self.memory.session(self.slot)
        self.space = self.owner.space(b"s" * KEY_BYTES, "space", 16, 0, 0)

    def fill(self, entry: int, serial: int, content: bytes) -> None:
        write_page(self.session, u32(entry), content)
        assert self.session.publish(u32(entry), u64(serial), 0) == b"\1"
        self.owner.settle()

    def store(self, name: str, size: int = FRAME) -> int:
        """Stores a page whose bytes are its name."""
        outcomes, entries, serials = reserve(self.owner, self.slot, self.space, 0, 1, DAY_NS, key(name), u64(size))
        assert outcomes == bytes([ReserveOutcome.GRANTED])
        self.fill(ints(entries, 4)[0], ints(serials, 8)[0], name.encode() * (size // len(name)))
        return ints(entries, 4)[0]

    def write(self, result: int = WriteResult.DONE) -> list[int]:
        """Starts all pending writes and completes them."""
        pages = self.owner.start_writes(1 << 20, 100)
        self.owner.end_writes(pages, bytes([result]) * PAGES_TO_WRITE.count(pages))
        return [page.entry for page in PAGES_TO_WRITE.read(pages)]

    def fetch(self, *names: str) -> list[PageToRead]:
        """Asks for pages on disk."""
        rows = self.owner.fetch(u32(self.slot), DAY_NS, b"".join(map(key, names)), u64(2**64 - 1))
        return list(PAGES_TO_READ.read(rows))

    def evict_all(self) -> None:
        self.owner.evict(GEOMETRY.frames, 100)
        assert self.owner.free_frames == GEOMETRY.frames

    def match(self, *names: str) -> tuple[int, int]:
        """Returns how many of these pages are in memory, and how many are available in total."""
        with self.session.match(Pins, None, b"".join(map(key, names))) as pins:
            return len(pins), pins.available_pages

    def load(self, name: str, size: int = FRAME) -> bytes:
        with self.session.match(Pins, None, key(name)) as pins:
            return read_page(self.session, pins, size)

    def sound(self) -> bool:
        return self.owner.check_integrity() == []
