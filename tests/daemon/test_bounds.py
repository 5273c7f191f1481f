"""No process takes the whole arena for what it has not written yet."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from pagetier.client import Client
from pagetier.daemon.bounds import Bounds
from running import RunningDaemon, eventually, namespace

FRAME, FRAMES, SHARE = 64 << 10, 1024, 512


class Arena:
    """Stands for the index's owner."""

    def __init__(self, frames: int, writing: int = 0, finished: int = 0) -> None:
        self.frames, self.writing, self.finished = frames, writing, finished

    def header(self) -> dict[str, int]:
        return {"frames": self.frames, "frame_bytes": FRAME}

    @property
    def open_entries(self) -> int:
        return self.writing

    def frames_writing(self, slot: int) -> int:
        return self.writing

    def settle(self) -> int:
        self.writing -= self.finished
        return self.writing


def pages(arena: Arena, share: float, *sizes: int) -> int:
    return Bounds(arena, share).pages(0, struct.pack(f"<{len(sizes)}Q", *sizes))  # type: ignore[arg-type]


def test_how_many_pages_fit() -> None:
    assert pages(Arena(2000), 0.5, *[FRAME] * 1000) == 1000
    assert pages(Arena(2000), 0.5, *[FRAME] * 1200) == 1000
    assert pages(Arena(2000), 0.5, *[FRAME + 1] * 600) == 500
    assert pages(Arena(2000, writing=900), 0.5, *[FRAME] * 200) == 100
    assert pages(Arena(2000, writing=900, finished=900), 0.5, *[FRAME] * 200) == 200
    assert pages(Arena(2000, writing=1000), 0.5, FRAME) == 0
    assert pages(Arena(2000), 0.5, FRAME * 1001, FRAME) == 0


def test_where_nothing_is_bounded() -> None:
    assert pages(Arena(2000, writing=2000), 0.0, *[FRAME] * 3000) == 3000
    assert pages(Arena(1000, writing=1000), 0.5, *[FRAME] * 3000) == 3000
    assert pages(Arena(2000), 0.9) == 0


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon(str(FRAMES * FRAME), str(FRAME), "--store-share", "0.5") as daemon:
        yield daemon


def test_one_that_stands_still_leaves_room(daemon: RunningDaemon) -> None:
    with daemon.client() as still, Client(daemon.socket) as other:
        assert other.wait_attached(10)
        with still.reserve(namespace(salt="still").keys(range(16 * 700)), FRAME) as held:
            assert len(held.granted) == SHARE
            refused = still.store(namespace(salt="more").keys(range(16)), [bytes(FRAME)])
            assert refused.refused == 1
            with other.reserve(namespace(salt="other").keys(range(16 * 400)), FRAME) as free:
                assert len(free.granted) == 400
        assert eventually(lambda: still.store(namespace(salt="again").keys(range(16)), [bytes(FRAME)]).stored == 1)
