"""Segments of a test's own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from index_with_disk import EVICTED, Place
from numbered_pages import GEOMETRY
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


@pytest.fixture
def place() -> Iterator[Place]:
    """An index in anonymous memory; sound at the end, whatever was asked."""
    there = Place()
    yield there
    assert there.sound()
    there.memory.close()


@pytest.fixture
def disk(place: Place) -> Place:
    """The same with a disk that has room for 8 frames."""
    place.owner.disk_open(8, EVICTED)
    return place
