"""The location of a copy's pages in the arena: a table of frames, since a page is not contiguous there."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.kernels.layout.tables import frozen


class Arena(msgspec.Struct, frozen=True):
    """Memory divided into frames: `nbytes` from `address` on, in the copying process's address space.

    `owner` keeps the memory alive. All attached processes share the frames; the caller must have pinned the pages or
    have been granted them.

    Raises:
        ValueError: There is no memory, or frames have no bytes.
    """

    address: int
    nbytes: int
    frame_bytes: int
    owner: object = None

    def __post_init__(self) -> None:
        if self.address < 1 or self.nbytes < 0 or self.frame_bytes < 1:
            raise ValueError(
                f"{self.nbytes} bytes at {self.address:#x} in frames of {self.frame_bytes} are not a valid arena"
            )


class Frames(msgspec.Struct, frozen=True, eq=False):
    """The frames of each page in order.

    `table` is i32 [pages, frames of a page] and read-only; all pages have one size.

    Use frames_of() to make one: it validates the frame numbers.
    """

    arena: Arena
    table: npt.NDArray[np.int32]

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "table", frozen(self.table, np.int32, -1, -1))

    @property
    def page_room(self) -> int:
        """The number of bytes that the frames of a page hold."""
        return int(self.table.shape[1]) * self.arena.frame_bytes

    def some(self, first: int, end: int) -> Frames:
        """Returns the frames of the pages from `first` to `end` (exclusive)."""
        return self if (first, end) == (0, len(self.table)) else Frames(self.arena, self.table[first:end])

    def require_room(self, pages: int, page_bytes: int) -> None:
        """Raises ValueError unless the table has one row for each of `pages` and its rows hold `page_bytes`."""
        if len(self.table) != pages or (pages and self.page_room < page_bytes):
            raise ValueError(
                f"the frames hold {len(self.table)} pages of at most {self.page_room} bytes,"
                f" but there are {pages} pages of {page_bytes}"
            )


def frames_of(arena: Arena, table: npt.ArrayLike) -> Frames:
    """Returns validated frames of an arena.

    Raises:
        ValueError: A frame is outside of the arena, or the shape or dtype is wrong.
    """
    numbers = np.asarray(table)
    if numbers.ndim != 2 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise ValueError(f"expected a table of integers [pages, frames], got {numbers.dtype} of shape {numbers.shape}")
    count = arena.nbytes // arena.frame_bytes
    wrong = numbers[(numbers < 0) | (numbers >= count)]
    if len(wrong):
        raise ValueError(f"frame {wrong[0]} does not exist: the arena has {count} frames of {arena.frame_bytes} bytes")
    return Frames(arena, numbers.astype(np.int32, copy=False))
