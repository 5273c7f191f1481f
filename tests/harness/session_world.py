"""An index in memory and a session as an engine has it, with pages that are stored and loaded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from anonymous_segments import DAY_NS, Memory, attach
from page_reservations import reserve
from pagetier.shm._core import KEY_BYTES, Owner, Pins, ReserveOutcome, Session, TierFlag
from pagetier.shm.geometry import Geometry

KEYS = [bytes([number]) * KEY_BYTES for number in range(8)]
FRAME = 4096


class SessionWorld:
    """An owner and a session with the same memory."""

    def __init__(self, frame: int = FRAME, frames: int = 16) -> None:
        self.memory = Memory(Geometry(frame, frames, frames, 2))
        self.owner: Owner = self.memory.adopted()
        self.session = self.join()

    def join(self) -> Session:
        return self.memory.session(attach(self.owner, len(self.owner.attachments())))

    def reserve(self, session: Session, number: int, size: int) -> tuple[bytes, bytes]:
        space = self.owner.space(bytes(KEY_BYTES), "test", 16, 0, 0)
        sizes = np.array([size], np.uint64)
        outcome, entry, serial = reserve(self.owner, session.slot, space, 0, 1, DAY_NS, KEYS[number], sizes)
        assert outcome == bytes([ReserveOutcome.GRANTED])
        return entry, serial

    def store(self, session: Session, number: int, content: npt.NDArray[np.uint8]) -> None:
        entry, serial = self.reserve(session, number, len(content))
        assert session.copy_in(entry, *address_and_size(content), 0, 2) == 1
        assert session.publish(entry, serial, 0) == b"\1"


def address_and_size(content: npt.NDArray[np.uint8]) -> tuple[bytes, bytes]:
    return content.ctypes.data.to_bytes(8, "little"), len(content).to_bytes(8, "little")


def page(fill: int, size: int = 2 * FRAME) -> npt.NDArray[np.uint8]:
    return np.full(size, fill, np.uint8)


def load(session: Session, pins: Pins, size: int = 2 * FRAME) -> npt.NDArray[np.uint8] | None:
    out = page(0, size)
    return out if session.copy_out(pins, 0, *address_and_size(out), 2) else None


def pinned(world: SessionWorld) -> int:
    """Returns how many of the three pages cannot be evicted."""
    world.owner.settle()
    return world.owner.flush(-1, TierFlag.BOTH)[1]


def first_of(world: SessionWorld) -> tuple[bytes, bytes]:
    with world.session.match(Pins, None, KEYS[0]) as pins:
        return pins.entries, pins.serials


@contextmanager
def copying(session: Session, pins: Pins, out: npt.NDArray[np.uint8], copied: list[int]) -> Iterator[None]:
    def copy() -> None:
        copied.append(session.copy_out(pins, 0, *address_and_size(out), 2))

    thread = threading.Thread(target=copy)
    thread.start()
    yield
    thread.join()
