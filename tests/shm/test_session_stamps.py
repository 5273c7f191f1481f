"""Tests which matches stamp the recency of a page. While another request of the process has it pinned, few do."""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt
import pytest

from core_records import lock_words
from learning_index import LearningIndex
from pagetier.shm._core import Pins, Session
from session_world import KEYS, SessionWorld, page

TRIES = 10_000
LONG_AGO = 1
FAR = 2**63
A, B = KEYS[:2]


@pytest.fixture
def world() -> SessionWorld:
    world = SessionWorld()
    world.store(world.session, 0, page(1))
    world.store(world.session, 1, page(2))
    world.owner.settle()
    return world


def ticks_of(locks: int, entries: int) -> npt.NDArray[np.uint64]:
    ticks: npt.NDArray[np.uint64] = lock_words(mmap.mmap(locks, 0), entries)["tick"]
    return ticks


def match(session: Session, keys: bytes = A) -> None:
    session.match(Pins, None, keys).release()


def keeps_tick(session: Session, ticks: npt.NDArray[np.uint64], entry: int) -> bool:
    before = int(ticks[entry])
    match(session)
    return int(ticks[entry]) == before


def entry_of(session: Session, key: bytes) -> int:
    with session.match(Pins, None, key) as pins:
        return int(np.frombuffer(pins.entries, np.uint32)[0])


def test_a_page_that_a_request_holds_is_not_stamped_by_each_match(world: SessionWorld) -> None:
    """All engines read the line of the stamp, so one that writes it takes it from the others."""
    entry, held = entry_of(world.session, A), world.session.match(Pins, None, A)
    ticks = ticks_of(world.memory.descriptors[1], 16)
    assert any(keeps_tick(world.session, ticks, entry) for _ in range(TRIES)), "each match has stamped it"
    held.release()


@pytest.mark.parametrize("damaged", [LONG_AGO, FAR])
def test_a_held_page_with_an_old_or_damaged_tick_is_stamped(world: SessionWorld, damaged: int) -> None:
    entry, held = entry_of(world.session, A), world.session.match(Pins, None, A)
    ticks = ticks_of(world.memory.descriptors[1], 16)
    ticks[entry] = damaged
    match(world.session)
    assert int(ticks[entry]) != damaged
    held.release()


def test_a_page_that_nobody_holds_is_stamped_by_each_match(world: SessionWorld) -> None:
    """Pages leave in the order of their last uses, which may be a few microseconds apart."""
    other = world.join()
    entry, held = entry_of(world.session, A), other.match(Pins, None, A)
    ticks = ticks_of(world.memory.descriptors[1], 16)
    for _ in range(100):
        before = int(ticks[entry])
        match(world.session)
        assert int(ticks[entry]) > before
    held.release()


def test_a_released_page_is_stamped_again(world: SessionWorld) -> None:
    entry, held = entry_of(world.session, A), world.session.match(Pins, None, A + B)
    held.release()
    ticks = ticks_of(world.memory.descriptors[1], 16)
    before = int(ticks[entry])
    match(world.session)
    assert int(ticks[entry]) > before


def test_a_use_after_a_store_is_stamped_although_the_page_is_held() -> None:
    """The store learns from the tick whether the page has returned. Without the stamp it would seem unused."""
    engine = LearningIndex(32)
    engine.store([A], b"")
    entry, held = entry_of(engine.session, A), engine.session.match(Pins, None, A)
    ticks = ticks_of(engine.memory.descriptors[1], 32)
    for _ in range(100):
        engine.store([A], b"")
        assert not keeps_tick(engine.session, ticks, entry)
    held.release()
