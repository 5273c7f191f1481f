"""Arenas that the copiers of a client pin together for the duration of copies, with a simulated driver and device."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from anonymous_segments import Memory, attach
from eventually import eventually
from fake_device import FakeDevice, FakeEvent
from fake_pinning_driver import PinningDriver
from pagetier.kernels.device import Copy, DeviceError, Direction
from pagetier.kernels.layout.frames import Arena, Frames, frames_of
from pagetier.kernels.pinning.pinned_arenas import PinnedArenas, PinningClaim
from pagetier.shm._core import Session
from pagetier.shm.geometry import Geometry
from virtual_clock import VirtualClock, in_main_thread

FRAME, FRAMES, LONG_S = 4096, 16, 20.0


def session_of(number: int) -> Session:
    memory = Memory(Geometry(FRAME, FRAMES, FRAMES, 2))
    return memory.session(attach(memory.adopted(), number))


def frames_in(session: Session) -> Frames:
    arena = Arena(session.arena_address, session.arena_bytes, session.frame_bytes, session)
    return frames_of(arena, np.arange(4).reshape(2, 2))


class World:
    """A client's current session, its arenas, and a copier's claim with one stream."""

    def __init__(self) -> None:
        self.driver, self.device = PinningDriver(), FakeDevice()
        self.first, self.second = session_of(1), session_of(2)
        self.current: Session | None = self.first
        self.checks = 0
        self.arenas = PinnedArenas(self._checked)
        self.claim = self.claimed()
        self.stream = self.claim.watched(self.device).stream(Direction.LOAD)

    def claimed(self) -> PinningClaim:
        return self.arenas.claim(self.driver.register, self.driver.unregister)

    def enqueue(self, frames: Frames) -> None:
        """Enqueues a copy of no planes, for which the device needs no cache."""
        self.stream.enqueue(Copy(Direction.LOAD, None, frames, range(0)))  # type: ignore[arg-type]

    def copy(self, session: Session) -> FakeEvent:
        """Enqueues a copy, which is in flight until its event completes."""
        self.enqueue(frames_in(session))
        self.stream.record()
        event = self.device.streams[0].todo[-1]
        assert isinstance(event, FakeEvent)
        return event

    def complete(self) -> None:
        """Completes the oldest copy."""
        assert self.device.streams[0].advance()

    def complete_all(self) -> None:
        """Completes what was enqueued, also on a device that failed: an arena's thread ends with its last copy."""
        self.device.dead = False
        self.stream.record()
        self.device.advance_all()

    def pin(self) -> None:
        """Pins the first session's arena."""
        self.claim.begin(self.first)
        assert eventually(lambda: self.arenas.progress == 1.0)

    def _checked(self) -> Session | None:
        self.checks += threading.current_thread().name == "pagetier-arenas"
        return self.current

    def settle(self) -> None:
        """Waits until the thread that unpins has checked each of two arenas, and done what follows from that."""
        wanted = self.checks + 4

        def checked() -> bool:
            self.arenas.check_session()
            return self.checks >= wanted

        assert eventually(checked)

    def pinned(self) -> list[int]:
        return list(self.driver.registered)

    def switch_to(self, session: Session | None) -> None:
        """Makes another session the current one."""
        self.current = session
        self.arenas.check_session()


@pytest.fixture
def world() -> World:
    return World()


def test_the_first_copy_begins_to_pin_and_the_session_is_held(world: World) -> None:
    assert world.arenas.state == "nothing is pinned" and world.arenas.progress == 0.0
    world.copy(world.first)
    world.complete()
    assert eventually(lambda: world.claim.ready(frames_in(world.first)))
    assert world.driver.registered == {world.first.arena_address: FRAME * FRAMES} and world.arenas.progress == 1.0
    assert not world.first.retire(), "the session was unmapped while its arena is pinned"
    assert world.claim.end(LONG_S)
    assert world.pinned() == [] and world.driver.wrong == []
    assert world.first.retire()


def test_an_arena_stays_pinned_while_a_copy_of_it_is_in_flight(world: World) -> None:
    for _ in range(2):
        world.copy(world.first)
    world.switch_to(world.second)
    new = world.copy(world.second)
    assert eventually(lambda: world.claim.ready(frames_in(world.second)))
    world.complete()
    world.settle()
    assert set(world.pinned()) == {world.first.arena_address, world.second.arena_address}
    world.complete()
    assert eventually(lambda: world.pinned() == [world.second.arena_address])
    assert eventually(world.first.retire)
    assert not new.came and world.claim.ready(frames_in(world.second))
    world.complete()
    assert world.claim.end(LONG_S) and world.driver.wrong == []


def test_a_copy_of_an_older_session_pins_nothing_and_unpins_nothing(world: World) -> None:
    world.switch_to(world.second)
    world.copy(world.second)
    world.copy(world.first)
    world.claim.begin(world.first)
    assert eventually(lambda: world.arenas.progress == 1.0)
    world.settle()
    assert world.driver.began == [world.second.arena_address]
    assert world.pinned() == [world.second.arena_address] and not world.claim.ready(frames_in(world.first))
    world.complete_all()
    assert world.claim.end(LONG_S)


def test_what_was_enqueued_counts_before_anything_is_recorded(world: World) -> None:
    world.enqueue(frames_in(world.first))
    assert eventually(lambda: world.arenas.progress == 1.0)
    assert not world.claim.end(0.1) and len(world.pinned()) == 1
    world.stream.record()
    world.complete()
    assert world.claim.end(LONG_S) and world.pinned() == []


@pytest.mark.parametrize("when", ["enqueuing", "copying"])
def test_under_a_device_that_failed_nothing_is_unpinned(world: World, when: str) -> None:
    world.pin()
    if when == "copying":
        world.copy(world.first)
    world.device.die()
    if when == "enqueuing":
        with pytest.raises(DeviceError):
            world.copy(world.first)
    world.switch_to(None)
    assert not world.claim.end(0.1)
    assert world.pinned() == [world.first.arena_address] and not world.first.retire()
    world.complete_all()
    assert world.claim.end(LONG_S)


def test_without_a_current_session_the_arena_goes_by_itself(world: World) -> None:
    world.copy(world.first)
    world.complete()
    assert eventually(lambda: world.arenas.progress == 1.0)
    world.current = None
    assert eventually(lambda: world.pinned() == [])
    assert eventually(world.first.retire)


def test_copiers_pin_an_arena_once_and_the_last_one_unpins_it(world: World) -> None:
    other = world.claimed()
    world.claim.begin(world.first)
    other.begin(world.first)
    assert eventually(lambda: world.arenas.progress == 1.0)
    assert world.claim.end(LONG_S)
    world.settle()
    assert other.ready(frames_in(world.first)) and world.driver.wrong == []
    assert other.end(LONG_S)
    assert world.pinned() == [] and len(world.driver.began) == 1


def test_a_lease_that_is_dropped_ends_when_its_last_stream_does(world: World) -> None:
    world.pin()
    del world.claim
    gc.collect()
    world.arenas.check_session()
    world.settle()
    assert len(world.pinned()) == 1, "the arena was unpinned while a stream can use it"
    del world.stream
    assert eventually(lambda: world.pinned() == [])
    assert eventually(world.first.retire)


def test_the_end_of_a_lease_keeps_its_timeout(world: World, virtual_clock: VirtualClock) -> None:
    virtual_clock.is_stuck = in_main_thread
    world.pin()
    world.driver.unpins.clear()
    began = virtual_clock.now
    assert not world.claim.end(0.5), "the end did not wait for the driver"
    assert virtual_clock.now - began == pytest.approx(0.5) and len(world.pinned()) == 1
    world.driver.unpins.set()
    assert eventually(lambda: world.claim.end(0.0)) and world.pinned() == []


def test_no_copy_is_begun_while_its_arena_is_being_unpinned() -> None:
    threads, world = set(threading.enumerate()), World()
    world.pin()
    world.driver.unpins.clear()
    world.switch_to(world.second)

    def refused() -> bool:
        try:
            world.copy(world.first)
            world.complete()
        except ValueError as error:
            assert "being unpinned" in str(error)
            return True
        return False

    assert eventually(refused)
    world.driver.unpins.set()
    assert eventually(lambda: world.pinned() == [])
    assert eventually(lambda: set(threading.enumerate()) <= threads), "the thread that unpins has not ended"
    world.copy(world.first)
    assert not world.claim.ready(frames_in(world.first)), "an arena that is being unpinned is ready"


def test_memory_that_cannot_be_pinned_is_never_ready(world: World) -> None:
    world.driver.fails = (0,)
    world.claim.begin(world.first)
    assert eventually(lambda: "failed" in world.arenas.state)
    assert not world.claim.ready(frames_in(world.first))
    world.complete_all()
    assert world.claim.end(LONG_S) and world.first.retire()


def test_memory_that_cannot_be_unpinned_stays_mapped(world: World) -> None:
    def refuse(address: int) -> None:
        raise RuntimeError("the driver is gone")

    claim = world.arenas.claim(world.driver.register, refuse)
    claim.begin(world.first)
    assert eventually(lambda: claim.ready(frames_in(world.first)))
    assert world.claim.end(LONG_S) and claim.end(LONG_S)
    assert not world.first.retire()


def test_memory_without_a_session_is_not_pinned(world: World) -> None:
    arena = Arena(world.first.arena_address, world.first.arena_bytes, world.first.frame_bytes)
    world.enqueue(frames_of(arena, [[1]]))
    assert not world.claim.ready(frames_of(arena, [[1]]))
    assert world.driver.began == []
