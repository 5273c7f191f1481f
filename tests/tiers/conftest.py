"""Folders for tiers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tier_pages import MEMORY


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder where syncing costs nothing."""
    with tempfile.TemporaryDirectory(prefix="pagetier-test-", dir=MEMORY) as folder:
        yield Path(folder)
