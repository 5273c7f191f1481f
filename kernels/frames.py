"""Where the pages of a copy lie in the arena: a table of frames, as a page is not contiguous there."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from .tables import frozen


class Arena(msgspec.Struct, frozen=True):
    """Memory cut into frames: `nbytes` from `address` on, as whoever copies sees it; owner keeps it alive.

    The frames of pages are shared by all who attach; the caller has the pages pinned, or was granted them. Raises
    ValueError for frames of no bytes, or no memory.
    """

    address: int
    nbytes: int
    frame_bytes: int
    owner: object = None

    def __post_init__(self) -> None:
        if self.address < 1 or self.nbytes < 0 or self.frame_bytes < 1:
            raise ValueError(f"no arena: {self.nbytes} bytes at {self.address:#x}, in frames of {self.frame_bytes}")


class Frames(msgspec.Struct, frozen=True, eq=False):
    """The frames of each page, in order: table is i32 [pages, frames of a page], for pages of one size; read-only.

    Made by frames_of, which asks whether the arena has them.
    """

    arena: Arena
    table: npt.NDArray[np.int32]

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "table", frozen(self.table, np.int32, -1, -1))

    @property
    def page_room(self) -> int:
        """Bytes that the frames of a page hold."""
        return int(self.table.shape[1]) * self.arena.frame_bytes

    def require_room(self, pages: int, page_bytes: int) -> None:
        """Raises ValueError if the table is not one row for each of so many pages, or its rows do not hold a page."""
        if len(self.table) != pages or (pages and self.page_room < page_bytes):
            raise ValueError(
                f"frames for {len(self.table)} pages of at most {self.page_room} bytes,"
                f" but there are {pages} pages of {page_bytes}"
            )


def frames_of(arena: Arena, table: npt.ArrayLike) -> Frames:
    """Raises ValueError for frames that the arena does not have, and where the table is not [pages, frames]."""
    numbers = np.asarray(table)
    if numbers.ndim != 2 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise ValueError(f"a table of frames is integers [pages, frames], not {numbers.dtype} of shape {numbers.shape}")
    count = arena.nbytes // arena.frame_bytes
    wrong = numbers[(numbers < 0) | (numbers >= count)]
    if len(wrong):
        raise ValueError(f"frame {wrong[0]}, but the arena has {count} frames of {arena.frame_bytes} bytes")
    return Frames(arena, numbers.astype(np.int32))
