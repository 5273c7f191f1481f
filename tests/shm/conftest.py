"""Fixtures with segments for one test, and a check that no test leaves a client."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_threads import no_client_is_left
from index_with_disk import Place
from numbered_pages import GEOMETRY
from pagetier.shm._core import WriteRule
from pagetier.shm.segments import SegmentRequest
from session_world import SessionWorld, page

__all__ = ["no_client_is_left"]


@pytest.fixture
def segment_request() -> Iterator[SegmentRequest]:
    """Yields a request for segments under a unique name. Asserts at the end that no segment is left."""
    segment_request = SegmentRequest(f"pagetier-test-{secrets.token_hex(6)}", GEOMETRY, "test")
    yield segment_request
    left = sorted(Path("/dev/shm").glob(f"{segment_request.name}.*"))
    for path in left:
        path.unlink()
    assert left == [], "the test left shared memory"


@pytest.fixture
def place() -> Iterator[Place]:
    """Yields an index in anonymous memory. Asserts at the end that it is consistent."""
    there = Place()
    yield there
    assert there.sound()
    there.memory.close()


@pytest.fixture
def disk(place: Place) -> Place:
    """Returns the index with a disk that has room for 8 frames."""
    place.owner.disk_open(8, WriteRule.EVICTED)
    return place


@pytest.fixture
def world() -> Iterator[SessionWorld]:
    """Yields a world with pages stored under the first three keys. Asserts at the end that the index is consistent."""
    world = SessionWorld()
    for number in range(3):
        world.store(world.session, number, page(number + 1))
    yield world
    assert world.owner.check_integrity() == []
    world.memory.close()
