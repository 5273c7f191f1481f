"""Copies through a ring in the device's memory: split over its buffers, with each page contiguous in a buffer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.kernels.device import Copy
from pagetier.kernels.gpu.runs import Runs, buffer_runs
from pagetier.kernels.layout.frames import Arena, Frames
from pagetier.kernels.layout.tables import TOKENS
from pagetier.kernels.layout.transfer import Transfer

_WIDEST: Final = 16  # bytes of a kernel's access: pages in the ring begin at multiples of it, as in frames


class StagingBuffer:
    """A buffer of a ring.

    Attributes:
        address: The address of the buffer.
        free: The mark of a queue after which the buffer is free; None before its first use.
    """

    def __init__(self, address: int) -> None:
        self.address = address
        self.free: object = None


class Ring:
    """Buffers of `buffer_bytes` bytes from `address` on, used in turn by a stream that waits for their `free` marks."""

    def __init__(self, address: int, nbytes: int, buffers: int = 2, owner: object = None) -> None:
        """Divides `nbytes` bytes from `address` on, which `owner` keeps alive.

        Raises:
            ValueError: A buffer has less than 16 bytes.
        """
        self.buffer_bytes = nbytes // max(buffers, 1) // _WIDEST * _WIDEST
        if buffers < 1 or not self.buffer_bytes or address % _WIDEST:
            raise ValueError(f"cannot make a ring of {buffers} buffers in {nbytes} bytes at {address:#x}")
        self._buffers = [StagingBuffer(address + at * self.buffer_bytes) for at in range(buffers)]
        self.address, self._taken = address, 0
        self._owner = owner

    def next_buffer(self) -> StagingBuffer:
        """Returns the least recently used buffer."""
        self._taken += 1
        return self._buffers[(self._taken - 1) % len(self._buffers)]


class Batch(msgspec.Struct, frozen=True, eq=False):
    """Planes of a copy that go through a ring together: `page_bytes` bytes of each page from `begin` on.

    Attributes:
        copy: The copy; none of its pages is skipped.
        begin: The first byte of each page.
        page_bytes: The number of bytes of each page.
        at_once: The number of pages that go through a buffer at once.
    """

    copy: Copy
    begin: int
    page_bytes: int
    at_once: int

    @property
    def parts(self) -> list[range]:
        """The pages that go through each buffer."""
        count = len(self.copy.transfer.slots)
        return [range(at, min(at + self.at_once, count)) for at in range(0, count, self.at_once)]

    def staged(self, address: int) -> Copy:
        """Returns the kernels' copy between the cache and buffers, as if all began at `address`, one frame a page.

        The pages of each part are staged_part(); the rows between them are empty.
        """
        slots, number = self.copy.transfer.slots, np.arange(len(self.copy.transfer.slots))
        place = number // self.at_once * self.stride + number % self.at_once
        pages = np.zeros(len(self.parts) * self.stride, TOKENS)
        table = np.zeros((len(pages), 1), np.int32)
        pages[place], table[place, 0] = slots.pages, number % self.at_once
        frames = Frames(Arena(address, self.at_once * self.page_bytes, self.page_bytes), table)
        transfer = msgspec.structs.replace(self._shifted(), slots=msgspec.structs.replace(slots, pages=pages))
        return Copy(self.copy.direction, transfer, frames, range(len(self.copy.planes)))

    @property
    def stride(self) -> int:
        """The rows of a part, a multiple of 16, so that the kernels' tables of each part are aligned (see launch)."""
        return -(-self.at_once // _WIDEST) * _WIDEST

    def staged_part(self, part: int) -> range:
        """Returns the pages of staged() that belong to a part."""
        return range(part * self.stride, part * self.stride + len(self.parts[part]))

    def runs(self, buffers: Sequence[StagingBuffer]) -> Runs:
        """Returns the runs between the pages in buffers, one buffer a part, and the frames."""
        number = np.arange(len(self.copy.transfer.slots))
        addresses = np.array([buffer.address for buffer in buffers], np.int64)
        begins = addresses[number // self.at_once] + number % self.at_once * self.page_bytes
        return buffer_runs(self.copy, begins, self.begin)

    def _shifted(self) -> Transfer:
        its, which = self.copy.transfer, slice(self.copy.planes.start, self.copy.planes.stop)
        planes = its.planes[which].copy()
        planes["at"] -= self.begin
        return msgspec.structs.replace(its, planes=planes, layers=its.layers[which], page_bytes=self.page_bytes)


def buffer_needed(copy: Copy) -> int:
    """Returns the smallest buffer size for batches() of this copy: its largest plane of a page; 0 if it has none."""
    extents = _extents(copy)
    return int(np.max(extents[:, 1] - extents[:, 0], initial=0))


def batches(copy: Copy, buffer_bytes: int) -> Iterator[Batch]:
    """Yields batches that together move the whole copy: one, or several where a page's bytes exceed a buffer.

    Yields:
        The batches, in the order of the planes.

    Raises:
        ValueError: A buffer has less than buffer_needed() bytes.
    """
    if buffer_needed(copy) > buffer_bytes:
        raise ValueError(f"buffers of {buffer_bytes} bytes are too small for planes of {buffer_needed(copy)} bytes")
    slots, extents = copy.transfer.slots, _extents(copy)
    pages = np.flatnonzero(slots.copies)
    for first, end in pairwise(_cuts(extents.tolist(), buffer_bytes) if len(pages) else []):
        begin, end_offset = int(extents[first:end, 0].min()), int(extents[first:end, 1].max())
        planes = range(copy.planes.start + first, copy.planes.start + end)
        at_once = min(buffer_bytes // (end_offset - begin), len(pages))
        yield Batch(_of(copy, pages, planes), begin, end_offset - begin, at_once)


def _extents(copy: Copy) -> npt.NDArray[np.int64]:
    """Returns the first and last byte of each plane in a page, rounded outwards to 16 bytes."""
    planes = copy.transfer.planes[copy.planes.start : copy.planes.stop]
    at = planes["at"]
    end = at + (planes["heads"] - 1) * planes["page_head"] + copy.transfer.slots.page_tokens * planes["width"]
    extents: npt.NDArray[np.int64] = np.stack([at // _WIDEST, -(-end // _WIDEST)], 1) * _WIDEST
    return extents


def _cuts(extents: Sequence[Sequence[int]], most: int) -> list[int]:
    """Returns the planes between which to cut, so that the bytes between two cuts fit into `most` bytes."""
    cuts, low, high = [0], 0, 0
    for at, (begin, end) in enumerate(extents):
        low, high = (min(low, begin), max(high, end)) if at > cuts[-1] else (begin, end)
        if high - low > most:
            cuts.append(at)
            low, high = begin, end
    return [*cuts, len(extents)] if extents else cuts


def _of(copy: Copy, pages: npt.NDArray[np.intp], planes: range) -> Copy:
    """Returns the copy restricted to some pages and planes."""
    slots = copy.transfer.slots
    some = msgspec.structs.replace(slots, pages=slots.pages.take(pages), skip=slots.skip[:0])
    transfer = msgspec.structs.replace(copy.transfer, slots=some)
    frames = Frames(copy.frames.arena, copy.frames.table[pages])
    return msgspec.structs.replace(copy, transfer=transfer, frames=frames, planes=planes)
