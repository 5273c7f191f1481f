"""Tests the curve as bytes: other segments continue it, unless the bytes are damaged or they know more."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from hashlib import sha256

import pytest

from anonymous_segments import DAY_NS, Memory, attach
from page_reservations import reserve
from pagetier.shm._core import KEY_BYTES, LookupCurve, Observer, Owner
from pagetier.shm.geometry import Geometry

FRAME, PAGES = 4096, 20
SIZES = array("d", [4, 16, 64, 1 << 40])


class Cache:
    """An index, and a process that looks up prompts and stores what is missing.

    Args:
        frame_bytes: The size of a frame.
        frames: The number of frames.
        stored: Prompts that are stored before lookups are counted.
    """

    def __init__(self, frame_bytes: int = FRAME, frames: int = 64, stored: Sequence[int] = ()) -> None:
        geometry = Geometry(frame_bytes=frame_bytes, frames=frames, entries=frames, spaces=2)
        self._memory = Memory(geometry)
        self.owner: Owner = self._memory.adopted()
        self._slot = attach(self.owner, 1)
        self._session = self._memory.session(self._slot)
        self._space = self.owner.space(b"s" * KEY_BYTES, "space", 16, 0, 0)
        self._seen: set[int] = set()
        for prompt in stored:
            self._store(prompt)
        self.owner.read_lookups(DAY_NS)
        self.observer = Observer(*self._memory.descriptors[:2])

    def serve(self, *prompts: int) -> None:
        for prompt in prompts:
            self._session.sample(_keys(prompt), PAGES if prompt in self._seen else 0)
            if prompt not in self._seen:
                self._store(prompt)

    def _store(self, prompt: int) -> None:
        sizes = array("Q", [FRAME] * PAGES)
        _, entries, serials = reserve(self.owner, self._slot, self._space, 0, 1, DAY_NS, _keys(prompt), sizes)
        self._session.publish(entries, serials, 0)
        self.owner.settle()
        self._seen.add(prompt)

    def curve(self) -> LookupCurve:
        self.owner.read_lookups(DAY_NS)
        return self.observer.curves(SIZES)[0]


def _keys(prompt: int) -> bytes:
    return b"".join(sha256(b"%d %d" % (prompt, page)).digest() for page in range(PAGES))


@pytest.fixture(scope="module")
def saved() -> bytes:
    cache = Cache()
    cache.serve(1, 2, 1, 3, 1)
    return cache.owner.save_lookups()


def test_a_larger_arena_continues_the_curve(saved: bytes) -> None:
    before, after = Cache(), Cache(frames=128)
    before.serve(1, 2, 1, 3, 1)
    after.curve()
    assert after.owner.restore_lookups(saved)
    old, new = before.curve(), after.curve()
    assert (old.found, old.missed, *old.ratios) == pytest.approx((new.found, new.missed, *new.ratios), rel=1e-3)
    assert sum(new.absent) > 0 and (lookups := after.observer.lookups()) is not None
    assert lookups.records == 5 and not any(lookups.absent_ever), "counters begin with the segments"
    after.serve(3)  # its pages have their places in the order of use
    assert after.curve().missed == pytest.approx(80 * 16, rel=1e-3)


def test_the_curve_that_knows_more_stays(saved: bytes) -> None:
    cache = Cache()
    cache.serve(4, 4, 4, 4, 4, 4)
    before = cache.curve()
    assert cache.owner.restore_lookups(saved)
    assert cache.curve() == before


def test_pages_whose_last_use_is_not_known_count_for_the_largest_cache_only() -> None:
    """An earlier daemon stored them."""
    cache = Cache(stored=[1])
    cache.serve(1)
    curve = cache.curve()
    assert (curve.found, curve.missed) == (PAGES * 16, 0)
    assert [*curve.ratios] == [0, 0, 0, 1]
    cache.serve(1)
    assert [*cache.curve().ratios[2:]] == pytest.approx([0.5, 1])


def test_damaged_bytes_are_rejected(saved: bytes) -> None:
    draw, cache = random.Random(11), Cache()
    wrong = [saved[:length] for length in (0, 7, 40, len(saved) - 16, len(saved) - 1)]
    wrong += [saved + bytes(16), bytes(len(saved)), draw.randbytes(len(saved))]
    for at in (*range(40), *(draw.randrange(len(saved)) for _ in range(300))):
        wrong.append(saved[:at] + bytes([saved[at] ^ 1 << draw.randrange(8)]) + saved[at + 1 :])
    for data in wrong:
        assert not cache.owner.restore_lookups(data)
    assert cache.curve().found + cache.curve().missed == 0
    cache.serve(1, 1)
    assert cache.curve().found == PAGES * 16


def test_distances_in_other_frames_are_rejected(saved: bytes) -> None:
    assert not Cache(frame_bytes=2 * FRAME).owner.restore_lookups(saved)
