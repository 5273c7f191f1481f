"""Folders for tiers."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pagetier.tiers.lmdb import LmdbTier
from tier_pages import MEMORY, small_tier


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """Yields a folder where syncing is free."""
    with tempfile.TemporaryDirectory(prefix="pagetier-test-", dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[LmdbTier]:
    """Yields an empty tier in a folder that contains nothing else."""
    with closing(small_tier(tmp_path / "tier")) as tier:
        yield tier


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Yields a function that mounts a small file system for the test."""
    point = tmp_path / "mount"
    point.mkdir()

    def mount(*options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tier-test", str(point)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting is not permitted here")
        return point

    yield mount
    subprocess.run(["umount", "--lazy", str(point)], capture_output=True, check=False)
