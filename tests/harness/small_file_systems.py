"""Mounts file systems for a test, such as one that it fills."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_file_system(size: str, *options: str) -> Iterator[Path]:
    """Yields a tmpfs of this size. Skips the test if that is not permitted."""
    words = "-t", "tmpfs", "-o", ",".join((f"size={size}", *options))
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as folder, mounted(Path(folder), "pagetier-test", *words):
        yield Path(folder)


@contextmanager
def mounted(point: Path, what: str, *words: str) -> Iterator[None]:
    """Mounts a file system for the duration of the block. Skips the test if that is not permitted."""
    point.mkdir(exist_ok=True)
    skip_unless("mount", *words, what, str(point))
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


def skip_unless(*command: str) -> None:
    """Runs a command. Skips the test if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{command[0]} is not permitted: {done.stderr.strip()}")
