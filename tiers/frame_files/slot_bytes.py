"""What the slots of a page have: its frames as they are, or the compressed page where that needs fewer slots."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec

from pagetier.shm._core import compress, expand

_KEPT: Final = 4  # buffers: as many as threads read at once


class SlotBytes(msgspec.Struct, frozen=True):
    """The bytes of each slot of a page, in order. `coded`: the bytes of a compressed page; 0 of any other."""

    slots: Sequence[memoryview]
    coded: int = 0


class CodeMemory:
    """Memory for compressed pages between the arena and the files, as O_DIRECT needs it. Thread-safe."""

    def __init__(self) -> None:
        self._free: list[memoryview] = []

    @contextlib.contextmanager
    def lent(self, nbytes: int) -> Iterator[memoryview]:
        """Yields memory for so many bytes, whatever it contains."""
        memory = self._taken(nbytes)
        try:
            yield memory[:nbytes]
        finally:
            if len(self._free) < _KEPT:
                self._free.append(memory)

    def _taken(self, nbytes: int) -> memoryview:
        with contextlib.suppress(IndexError):
            if len(memory := self._free.pop()) >= nbytes:
                return memory
        return memoryview(mmap.mmap(-1, nbytes))


def cut(frames: Sequence[memoryview], count: int, slot_bytes: int) -> list[memoryview]:
    """Returns the first `count` slots of a page's frames."""
    slots = (frame[at : at + slot_bytes] for frame in frames for at in range(0, len(frame), slot_bytes))
    return list(islice(slots, count))


def compressed(size: int, frames: Sequence[memoryview], slot_bytes: int, out: memoryview) -> SlotBytes | None:
    """Compresses a page to the beginning of `out`. Returns None unless that saves a slot."""
    most = (-(-size // slot_bytes) - 1) * slot_bytes
    coded = compress(_parts(size, frames), out[:most]) if most else 0
    if not coded:
        return None
    end = -(-coded // slot_bytes) * slot_bytes
    out[coded:end] = bytes(end - coded)  # no bytes of other pages
    return SlotBytes(cut([out[:end]], end // slot_bytes, slot_bytes), coded)


def expanded(code: memoryview, size: int, frames: Sequence[memoryview]) -> bool:
    """Fills the frames of a page from what compressed() wrote. Returns False if `code` is something else."""
    return expand(code, _parts(size, frames))


def _parts(size: int, frames: Sequence[memoryview]) -> list[memoryview]:
    """Returns the parts of the frames that contain the page."""
    begins = range(0, size, len(frames[0]) if frames else size)
    return [frame[: size - begin] for begin, frame in zip(begins, frames, strict=False)]
