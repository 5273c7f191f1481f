"""Tests that the slots of dead processes are freed once, after the quarantine, and no others are."""

from __future__ import annotations

import logging
import mmap
import os
import subprocess
from collections.abc import Iterator

import pytest

from anonymous_segments import Memory
from pagetier.daemon.common import loop_clock
from pagetier.daemon.common.log_throttle import LINES
from pagetier.daemon.index.reaper import Reaper
from pagetier.shm._core import SLOTS, Owner
from pagetier.shm.geometry import Geometry
from pagetier.shm.process import Process
from pagetier.shm.slot_locks import SlotLocks, lock_descriptor, new_lock
from virtual_time_loop import OwnTimeLoop

QUARANTINE_S = 0.1
BACK_S = 11.0  # longer than sessions have to attach again


class World:
    """An owner, a loop, and processes that do nothing until they are killed."""

    def __init__(self, loop: OwnTimeLoop) -> None:
        self.loop = loop
        self.memory = Memory(Geometry(4096, 16, 16, 2))
        self.owner: Owner = self.memory.adopted()
        self.reaper = self.new_reaper()
        self.processes: list[subprocess.Popen[bytes]] = []

    def arena(self) -> int:
        """Returns a descriptor of the arena that belongs to a new open file."""
        return os.open(f"/proc/self/fd/{self.memory.descriptors[-1]}", os.O_RDWR)

    def new_reaper(self) -> Reaper:
        return Reaper(self.owner, self.loop, QUARANTINE_S, SlotLocks(self.arena()))

    def restart(self) -> None:
        """Gives the segments to the next daemon."""
        self.reaper.close()
        self.reaper = self.new_reaper()
        self.reaper.watch_adopted()

    def attach(self) -> int:
        child = subprocess.Popen(["sleep", "3600"])
        self.processes.append(child)
        pidfd = os.pidfd_open(child.pid)
        process = Process.of_pidfd(child.pid, pidfd)
        slot = self.owner.attach(child.pid, os.getuid(), process.started, 1, "test", process.kernel_id)
        self.reaper.watch(slot, pidfd)
        return slot

    def attach_unseen(self) -> tuple[int, mmap.mmap]:
        """Attaches a process that no namespace shows, and returns its slot with its mapping, which has the lock."""
        lock, descriptor = new_lock(), self.arena()
        slot = self.owner.attach(0, os.getuid(), 0, 2, "test", 1, lock)
        assert lock_descriptor(descriptor, lock)
        mapping = mmap.mmap(descriptor, mmap.PAGESIZE)
        os.close(descriptor)
        return slot, mapping

    def attach_session(self, process: Process, token: int, lock: int) -> int:
        """Attaches a session of a process that is watched and maps nothing."""
        slot = self.owner.attach(process.pid, os.getuid(), process.started, token, "test", process.kernel_id, lock)
        self.reaper.watch(slot, os.pidfd_open(process.pid))
        return slot

    def attach_mapped(self, process: Process, token: int) -> tuple[int, mmap.mmap]:
        """Attaches a session of a process that is watched, and returns its slot and its mapping with the lock."""
        lock, descriptor = new_lock(), self.arena()
        assert lock_descriptor(descriptor, lock)
        mapping = mmap.mmap(descriptor, mmap.PAGESIZE)
        os.close(descriptor)
        return self.attach_session(process, token, lock), mapping

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number].wait()

    def run(self, seconds: float) -> None:
        self.loop.run_until_complete(loop_clock.pause(seconds))

    def slots(self) -> list[int]:
        return sorted(attachment.slot for attachment in self.owner.attachments())


@pytest.fixture
def world(virtual_time: OwnTimeLoop) -> Iterator[World]:
    there = World(virtual_time)
    yield there
    for number in range(len(there.processes)):
        there.kill(number)
    there.reaper.close()


def test_a_slot_is_kept_for_the_quarantine(world: World) -> None:
    slot = world.attach()
    world.kill(0)
    world.run(QUARANTINE_S / 4)
    assert world.slots() == [slot] and world.reaper.ends(slot) == 0
    world.run(QUARANTINE_S * 2)
    assert world.slots() == [] and world.reaper.ends(slot) == 1


def test_a_detached_slot_is_free_at_once(world: World) -> None:
    slot = world.attach()
    world.reaper.release(slot)
    assert world.slots() == []
    world.kill(0)
    world.run(QUARANTINE_S * 2)
    assert world.reaper.ends(slot) == 1


def test_a_late_detach_of_the_dead_does_not_free_the_next_slot(world: World) -> None:
    """Its Detach may be read after its death was detected."""
    slot = world.attach()
    world.kill(0)
    world.run(QUARANTINE_S / 4)
    world.reaper.release(slot)
    assert world.slots() == [slot], "its GPU may still write"
    other = world.attach()
    world.run(QUARANTINE_S * 2)
    assert world.slots() == [other]


def test_a_late_attach_of_the_dead_does_not_end_the_next_slot(world: World) -> None:
    """It requested its slot while there was no daemon, and died.

    The next daemon detects the death, then reads the request.
    """
    slot = world.attach()
    pidfd = os.pidfd_open(world.processes[0].pid)
    world.restart()
    world.kill(0)
    world.run(QUARANTINE_S / 2)
    world.reaper.watch(slot, pidfd)
    world.run(QUARANTINE_S * 3 / 4)
    assert world.slots() == [] and world.reaper.ends(slot) == 1
    other = world.attach()
    world.kill(1)
    world.run(QUARANTINE_S / 2)
    assert world.slots() == [other], "it has its own quarantine"
    world.run(QUARANTINE_S * 2)
    assert world.slots() == [] and world.reaper.ends(other) == 2


def test_a_closed_reaper_frees_nothing(world: World) -> None:
    slot = world.attach()
    world.kill(0)
    world.run(QUARANTINE_S / 4)
    world.reaper.close()
    world.run(QUARANTINE_S * 2)
    assert world.slots() == [slot]


def test_an_adopted_slot_is_freed_when_no_mapping_keeps_its_lock(world: World) -> None:
    slot, mapping = world.attach_unseen()
    world.restart()
    world.run(QUARANTINE_S * 20)
    assert world.slots() == [slot] and world.reaper.locked == [slot]
    mapping.close()
    world.run(1)
    assert world.slots() == [] and world.reaper.ends(slot) == 1 and world.reaper.locked == []


def test_the_death_of_another_process_with_its_pid_frees_no_slot(world: World) -> None:
    slot, mapping = world.attach_unseen()
    world.owner.reap(slot)
    world.attach()
    lock = new_lock()
    assert lock_descriptor(world.memory.descriptors[-1], lock)
    reused = world.owner.attach(world.processes[0].pid, os.getuid(), 0, 2, "test", 1, lock)
    world.restart()
    world.kill(0)
    world.run(QUARANTINE_S * 20)
    assert world.slots() == [reused]
    mapping.close()


def test_a_session_that_returns_in_the_quarantine_keeps_its_slot(world: World) -> None:
    """Its daemon died before it had mapped the segments, so nothing keeps the lock."""
    slot, mapping = world.attach_unseen()
    mapping.close()
    world.restart()
    world.run(QUARANTINE_S / 2)
    world.reaper.watch(slot, os.pidfd_open(os.getpid()))
    world.run(QUARANTINE_S * 20)
    assert world.slots() == [slot] and world.reaper.ends(slot) == 0


def own_process() -> Process:
    pidfd = os.pidfd_open(os.getpid())
    try:
        return Process.of_pidfd(os.getpid(), pidfd)
    finally:
        os.close(pidfd)


def test_a_session_that_maps_nothing_is_freed_when_another_of_its_process_attaches(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """It has executed another program. Sessions that map the arena, that have no lock, or that return keep theirs."""
    caplog.set_level(logging.INFO)
    process = own_process()
    unmapped, returning, unlocked = (
        world.attach_session(process, token, new_lock() * (token < 4)) for token in (2, 3, 4)
    )
    mapped, mapping = world.attach_mapped(process, token=5)
    other = world.attach()
    world.run(QUARANTINE_S * 2)
    assert len(world.slots()) == 5, "nothing is judged before a session attaches"
    world.reaper.free_unmapped(process, token=3)
    world.run(QUARANTINE_S / 4)
    assert len(world.slots()) == 5, "the quarantine"
    world.run(QUARANTINE_S * 2)
    assert world.slots() == sorted([returning, unlocked, mapped, other])
    assert (world.reaper.ends(unmapped), world.reaper.deaths) == (1, 0)
    assert f"has lost its mapping without detaching (exec?): slot {unmapped} is free" in caplog.text
    mapping.close()


def test_a_session_in_the_quarantine_attaches_again_or_detaches(world: World) -> None:
    process = own_process()
    returning, leaving = (world.attach_session(process, token, new_lock()) for token in (2, 3))
    world.reaper.free_unmapped(process, token=4)
    world.reaper.release(leaving)
    assert world.slots() == [returning], "it detached, and maps nothing"
    world.reaper.watch(returning, os.pidfd_open(os.getpid()))
    world.run(QUARANTINE_S * 2)
    assert world.slots() == [returning] and world.reaper.deaths == 0


def test_a_slot_without_a_lock_is_kept_until_it_is_given_up(world: World, caplog: pytest.LogCaptureFixture) -> None:
    slot = world.owner.attach(0, 77, 0, 2, "silent", 2)
    locked, mapping = world.attach_unseen()
    seen = world.attach()
    world.restart()
    world.run(QUARANTINE_S * 20)
    assert world.reaper.unjudged == [slot]
    assert "silent of user 77" in caplog.text and f"pagetier reclaim {slot}" in caplog.text
    assert "watches" in world.reaper.reclaim(seen) and "is free" in world.reaper.reclaim(55)
    assert not world.reaper.reclaim(slot) and "is free" in world.reaper.reclaim(slot)
    world.run(QUARANTINE_S * 2)
    assert world.slots() == sorted([locked, seen]) and world.reaper.unjudged == []
    mapping.close()


def test_a_slot_whose_lock_is_held_is_shown_when_its_session_stays_away_and_not_reclaimed(world: World) -> None:
    """A child that was forked during the attachment has the lock, or another process has."""
    slot, mapping = world.attach_unseen()
    world.restart()
    assert world.reaper.unjudged == []
    world.run(BACK_S)
    assert world.reaper.unjudged == [slot]
    assert "still maps the arena" in world.reaper.reclaim(slot)
    world.run(QUARANTINE_S * 2)
    assert world.slots() == [slot]
    mapping.close()
    world.run(1)
    assert world.slots() == [] and world.reaper.unjudged == []


def test_a_kernel_that_cannot_tell_of_a_lock_is_asked_again(world: World) -> None:
    """A lock is asked for through a descriptor that is closed, then through an open one."""
    _, mapping = world.attach_unseen()
    world.restart()
    mapping.close()
    arena = world.reaper._locks._arena
    kept = os.dup(arena.fileno())
    os.dup2(os.open("/", os.O_PATH), arena.fileno())  # F_OFD_GETLK fails with EBADF
    world.run(QUARANTINE_S * 20)
    assert len(world.slots()) == 1
    os.dup2(kept, arena.fileno())
    os.close(kept)
    world.run(1)
    assert world.slots() == []


def test_a_damaged_lock_judges_nothing(world: World) -> None:
    slot = world.owner.attach(0, 77, 0, 2, "damaged", 2, 2**63 + 1)
    world.restart()
    assert world.reaper.unjudged == [slot]


def test_slots_that_get_no_lock_are_logged_as_often_as_a_user_may_cause_lines(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for slot in range(SLOTS):
        world.owner.attach(0, 77, 0, slot, "unlocked", 2)
        world.reaper.warn_if_unlocked(slot, 77)
    assert len(caplog.records) == LINES
