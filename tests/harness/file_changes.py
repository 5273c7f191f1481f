"""Changes bytes of files, as damage does."""

from __future__ import annotations

from pathlib import Path


def write_at(file: Path, offset: int, data: bytes) -> None:
    """Overwrites bytes of a file."""
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(data)


def flip_bit(file: Path, offset: int, bit: int) -> None:
    """Flips one bit of a file: the bit-th from this offset on."""
    at = offset + bit // 8
    write_at(file, at, bytes([file.read_bytes()[at] ^ 1 << bit % 8]))
