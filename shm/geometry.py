"""The size of segments: frames, entries, namespaces."""

from __future__ import annotations

from typing import Final, Self

import msgspec

from pagetier.shm._core import IndexHeader, plan

DEFAULT_FRAME_BYTES: Final = 1 << 20
"""`arena.frame_size` by default. Engines choose pages that fill frames of this size."""


class Geometry(msgspec.Struct, frozen=True):
    """The sizes with which segments are made.

    Attributes:
        frame_bytes: Bytes of a frame: a power of two, 4096 or more.
        frames: Frames of the arena.
        entries: The most pages that the index has room for.
        spaces: The most namespaces.
    """

    frame_bytes: int
    frames: int
    entries: int
    spaces: int

    @classmethod
    def of(cls, header: IndexHeader) -> Self:
        """Returns the geometry of the segments with this header."""
        return cls(*(getattr(header, field) for field in cls.__struct_fields__))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The bytes of index, lock words and arena."""
        return plan(self.frame_bytes, self.frames, self.entries, self.spaces)[:3]

    @property
    def at_events(self) -> int:
        """The offset of the ring of events in the index."""
        return plan(self.frame_bytes, self.frames, self.entries, self.spaces).at_events

    @property
    def events_bytes(self) -> int:
        """The bytes of the ring of events."""
        return plan(self.frame_bytes, self.frames, self.entries, self.spaces).events_bytes

    def __str__(self) -> str:
        frames = f"{self.frames} frames of {self.frame_bytes} bytes"
        return f"{frames}, an index of {self.entries} pages and {self.spaces} namespaces"
