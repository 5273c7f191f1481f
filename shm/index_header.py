"""The first bytes of an index, which are the same in every format: the build that wrote it, and its format."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from pagetier.shm._core import FORMAT, HEAD_LAYOUT
from pagetier.shm._core import MAGIC as _MAGIC

MAGIC: Final = _MAGIC.to_bytes(8, "little")
_PLACES: Final = {name: slice(offset, offset + size) for name, offset, size in HEAD_LAYOUT.fields}


class Head(msgspec.Struct, frozen=True):
    """The head of an index.

    Attributes:
        magic: MAGIC; all zero while the index is being made.
        format: The number of the index's format.
        build: The build that made the index, for diagnostics.
    """

    magic: bytes
    format: int
    build: str

    @property
    def unfinished(self) -> bool:
        """Whether the daemon that made the index died before it was complete."""
        return not any(self.magic)

    @property
    def ours(self) -> bool:
        """Whether some version of pagetier made the index."""
        return self.magic == MAGIC

    @property
    def unusable_reason(self) -> str:
        """Why this build cannot use the segments, with both versions; "" if it can."""
        if not self.ours:
            return "are not pagetier's"
        if self.format != FORMAT:
            return f"were left in format {self.format} by {self.build!r}, this build reads format {FORMAT}"
        return ""


def head_of(index: int) -> Head:
    """Returns the head of the index behind a descriptor. Raises OSError."""
    data = os.pread(index, HEAD_LAYOUT.size, 0).ljust(HEAD_LAYOUT.size, b"\0")
    magic, number, build = (data[_PLACES[name]] for name in ("magic", "format", "build"))
    return Head(magic, int.from_bytes(number, "little"), build.rstrip(b"\0").decode(errors="replace"))
