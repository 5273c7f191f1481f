"""The first bytes of an index, which are the same in every format: who left it, and in which format."""

from __future__ import annotations

import os
import struct

import msgspec

from pagetier.shm._core import FORMAT

MAGIC = b"pagetier"
_HEAD = struct.Struct("<8sI12x40s")


class Head(msgspec.Struct, frozen=True):
    """What an index says about itself. magic: all zero while it is being made; build: for people."""

    magic: bytes
    format: int
    build: str

    @property
    def unfinished(self) -> bool:
        """Whether the daemon that made it died over that."""
        return not any(self.magic)

    @property
    def ours(self) -> bool:
        """Whether pagetier made it, in whatever version."""
        return self.magic == MAGIC

    @property
    def why_not(self) -> str:
        """Why this build can not use the segments, with both versions; "" if its format is ours."""
        if not self.ours:
            return "are not pagetier's"
        if self.format != FORMAT:
            return f"were left in format {self.format} by {self.build!r}, this build reads format {FORMAT}"
        return ""


def head_of(index: int) -> Head:
    """Reads the head by a descriptor of an index. Raises OSError."""
    data = os.pread(index, _HEAD.size, 0).ljust(_HEAD.size, b"\0")
    magic, number, build = _HEAD.unpack(data)
    return Head(magic, number, build.rstrip(b"\0").decode(errors="replace"))
