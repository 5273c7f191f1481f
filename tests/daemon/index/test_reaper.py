"""Tests that the slots of dead processes are freed once, after the quarantine, and no others are."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator

import pytest

from anonymous_segments import Memory
from pagetier.daemon.index.reaper import Reaper
from pagetier.shm._core import Owner
from pagetier.shm.geometry import Geometry
from pagetier.shm.process import Process
from virtual_time_loop import OwnTimeLoop

QUARANTINE_S = 0.1


class World:
    """An owner, a loop, and processes that do nothing until they are killed."""

    def __init__(self) -> None:
        self.loop = OwnTimeLoop()
        self.owner: Owner = Memory(Geometry(4096, 16, 16, 2)).adopted()
        self.reaper = Reaper(self.owner, self.loop, QUARANTINE_S)
        self.processes: list[subprocess.Popen[bytes]] = []

    def attach(self) -> int:
        child = subprocess.Popen(["sleep", "60"])
        self.processes.append(child)
        slot = self.owner.attach(child.pid, os.getuid(), Process.of(child.pid).started, 1, "test")
        self.reaper.watch(slot, os.pidfd_open(child.pid))
        return slot

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number].wait()

    def run(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def slots(self) -> list[int]:
        return sorted(attachment.slot for attachment in self.owner.attachments())


@pytest.fixture
def world() -> Iterator[World]:
    there = World()
    yield there
    for number in range(len(there.processes)):
        there.kill(number)
    there.reaper.close()
    there.loop.close()


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
    world.reaper.close()
    world.kill(0)
    world.reaper = Reaper(world.owner, world.loop, QUARANTINE_S)
    world.reaper.watch_adopted()
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
