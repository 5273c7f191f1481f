"""Folders for tiers, and a check that no test leaves a client."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from client_threads import no_client_is_left
from files_store import opened
from pagetier.tiers.capacity import StoreName
from pagetier.tiers.disk.store import DiskStore
from pagetier.tiers.frame_files import FilesStore
from small_file_systems import small_file_system
from store_pages import MEMORY, Default, small_tier

__all__ = ["no_client_is_left"]


@pytest.fixture(params=[("lmdb", "off"), ("files", "off"), ("files", "on")], ids=["lmdb", "files", "compressed"])
def each_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StoreName:
    """Runs a test with each store of the disk tier, also with compressed pages. Returns the name of the store."""
    store: StoreName
    store, compress = request.param
    monkeypatch.setattr(Default, "store", store)
    monkeypatch.setattr(Default, "compress", compress)
    return store


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """Yields a folder where syncing is free."""
    with tempfile.TemporaryDirectory(prefix="pagetier-test-", dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[DiskStore]:
    """Yields an empty tier in a folder that contains nothing else."""
    with closing(small_tier(tmp_path / "tier")) as tier:
        yield tier


@pytest.fixture
def tmpfs() -> Iterator[Callable[..., Path]]:
    """Yields a function that mounts a small file system for the test."""
    with ExitStack() as stack:
        yield lambda *options: stack.enter_context(small_file_system(*options))


@pytest.fixture
def files(tmp_path: Path) -> Iterator[FilesStore]:
    """Yields an empty tier of one environment."""
    with closing(opened(tmp_path)) as tier:
        yield tier
