"""The wheels that `make wheel` builds, and a folder for large files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yields a folder that is removed at once, because pytest would keep hundreds of megabytes of packages."""
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as name:
        yield Path(name)


@pytest.fixture
def wheel_for() -> Callable[[str], Path]:
    """Returns a function that returns the wheel for an architecture."""
    return _wheel_for


def _wheel_for(architecture: str) -> Path:
    if "WHEELS" not in os.environ:
        pytest.skip("make wheel builds the wheels and runs this test")
    (wheel,) = Path(os.environ["WHEELS"]).glob(f"pagetier-*-manylinux*_{architecture}.whl")
    return wheel
