"""Segments of a test's own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from numbered import GEOMETRY
from pagetier.shm.segments import Wish


@pytest.fixture
def wish() -> Iterator[Wish]:
    """Segments under a name of the test's own; nothing of them may be left at its end."""
    wanted = Wish(f"pagetier-test-{secrets.token_hex(6)}", GEOMETRY, "test")
    yield wanted
    left = sorted(Path("/dev/shm").glob(f"{wanted.name}.*"))
    for path in left:
        path.unlink()
    assert left == [], "the test left shared memory"
