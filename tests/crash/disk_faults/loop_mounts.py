"""File systems of a test's own, in a file: one can be frozen, and one can lose what it was given."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

_TOOLS: Final = ("mkfs.ext4", "mount", "umount", "fsfreeze")
_IMAGE: Final = 128 << 20


@contextmanager
def ext4(image: Path, point: Path) -> Iterator[Path]:
    """A new one in a file with holes, without a journal, until the end of the block. Skips where it can not be."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"there is no {missing[0]} here")
    with image.open("wb") as file:
        file.truncate(_IMAGE)
    _skip_unless("mkfs.ext4", "-q", "-F", "-O", "^has_journal", str(image))
    with mounted(point, str(image), "-o", "loop"):
        yield point


@contextmanager
def tmpfs(point: Path, size: str) -> Iterator[Path]:
    """One that takes so much and no more. Skips where it can not be mounted."""
    with mounted(point, "faults-test", "-t", "tmpfs", "-o", f"size={size}"):
        yield point


@contextmanager
def mounted(point: Path, what: str, *words: str) -> Iterator[None]:
    """Until the end of the block. Skips where it is not allowed."""
    point.mkdir(exist_ok=True)
    _skip_unless("mount", *words, what, str(point))
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


def mount_again(image: Path, point: Path) -> None:
    """Nothing that was read or written before is in the page cache then. The caller guarantees that nobody uses it."""
    subprocess.run(["umount", str(point)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=True)


@contextmanager
def frozen(point: Path) -> Iterator[None]:
    """Whoever writes to it hangs until the end of the block, and nothing can end him."""
    _skip_unless("fsfreeze", "--freeze", str(point))
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(point)], check=True)


def _skip_unless(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{command[0]} is refused here: {done.stderr.strip()}")
