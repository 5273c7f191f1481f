"""How large segments are: frames, entries, namespaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import msgspec

from pagetier.shm._core import plan


class Geometry(msgspec.Struct, frozen=True):
    """What segments are made with. frame_bytes: a power of two, 4096 or more; entries: pages at most."""

    frame_bytes: int
    frames: int
    entries: int
    spaces: int

    @classmethod
    def of(cls, header: Mapping[str, int]) -> Self:
        """That of the segments with this header."""
        return cls(*(header[field] for field in cls.__struct_fields__))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Bytes of index, lock words and arena."""
        return plan(self.frame_bytes, self.frames, self.entries, self.spaces)

    def __str__(self) -> str:
        frames = f"{self.frames} frames of {self.frame_bytes} bytes"
        return f"{frames}, an index of {self.entries} pages and {self.spaces} namespaces"
