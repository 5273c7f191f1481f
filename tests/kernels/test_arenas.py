"""Arenas pinned as copies need them: one session's at a time, held while it is pinned. The driver is pretended."""

from __future__ import annotations

import numpy as np

from memory import Memory, attach
from pagetier.kernels.arenas import PinnedArenas
from pagetier.kernels.frames import Arena, Frames, frames_of
from pagetier.shm._core import Session
from pagetier.shm.segments import Geometry
from pinned import PinningDriver, eventually

FRAME, FRAMES = 4096, 16


def session_of(number: int) -> Session:
    memory = Memory(Geometry(FRAME, FRAMES, FRAMES, 2))
    return memory.session(attach(memory.adopted(), number))


def frames_in(session: Session) -> Frames:
    arena = Arena(session.arena_address, session.arena_bytes, session.frame_bytes, session)
    return frames_of(arena, np.arange(4).reshape(2, 2))


def test_the_first_copy_begins_to_pin_and_the_session_is_held() -> None:
    driver, session = PinningDriver(), session_of(1)
    arenas = PinnedArenas(driver.register, driver.unregister)
    assert arenas.state == "nothing is pinned"
    eventually(lambda: arenas.ready(frames_in(session)))
    assert driver.registered == {session.arena_address: FRAME * FRAMES}
    assert not session.retire(), "it would be unmapped under the driver"
    arenas.close()
    assert driver.registered == {} and driver.wrong == []
    assert session.retire()


def test_another_session_takes_the_place_of_the_one_before() -> None:
    driver, first, second = PinningDriver(seconds=0.01), session_of(1), session_of(2)
    arenas = PinnedArenas(driver.register, driver.unregister)
    arenas.begin(first)
    eventually(lambda: arenas.ready(frames_in(first)))
    eventually(lambda: arenas.ready(frames_in(second)))
    eventually(lambda: list(driver.registered) == [second.arena_address])
    eventually(first.retire)
    assert arenas.ready(frames_in(second))
    arenas.close()
    assert driver.registered == {} and second.retire()
    assert not arenas.ready(frames_in(session_of(3))), "it is closed"
    assert driver.registered == {} and driver.wrong == []


def test_memory_that_can_not_be_pinned_is_never_ready() -> None:
    driver, session = PinningDriver(fails=(0,)), session_of(1)
    arenas = PinnedArenas(driver.register, driver.unregister)
    arenas.begin(session)
    eventually(lambda: "failed" in arenas.state)
    assert not arenas.ready(frames_in(session))
    arenas.close()
    assert session.retire()


def test_memory_that_can_not_be_unpinned_stays_mapped() -> None:
    driver, session = PinningDriver(), session_of(1)

    def refuse(address: int) -> None:
        raise RuntimeError("the driver is gone")

    arenas = PinnedArenas(driver.register, refuse)
    eventually(lambda: arenas.ready(frames_in(session)))
    arenas.close()
    assert not session.retire()


def test_memory_of_nobody_is_not_pinned() -> None:
    driver, session = PinningDriver(), session_of(1)
    arenas = PinnedArenas(driver.register, driver.unregister)
    arena = Arena(session.arena_address, session.arena_bytes, session.frame_bytes)
    assert not arenas.ready(frames_of(arena, [[1]]))
    arenas.close()
    assert driver.began == []
