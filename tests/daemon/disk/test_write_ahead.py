"""Tests how much of memory is written to disk ahead of eviction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from anonymous_segments import Memory, attach
from numbered_pages import GEOMETRY, store
from pagetier.daemon.config.disk_options import DiskOptions
from pagetier.daemon.disk.write_behind import WriteBehind
from pagetier.daemon.disk.write_budget import Budget
from pagetier.shm._core import Owner, Session, WriteRule
from pagetier.tiers.worker_protocol import Command, Stored, Write, Wrote
from virtual_time_loop import OwnTimeLoop

FRAMES = GEOMETRY.frames
ROUND = 256  # pages that the policy learns from before it chooses


@pytest.fixture
def memory() -> Iterator[Memory]:
    memory = Memory(GEOMETRY)
    yield memory
    memory.close()


@pytest.fixture
def owner(memory: Memory) -> Owner:
    return memory.adopted()


@pytest.fixture
def session(memory: Memory, owner: Owner) -> Iterator[Session]:
    slot = attach(owner, 1)
    session = memory.session(slot)
    yield session
    session.retire()
    owner.reap(slot)
    assert owner.check_integrity() == []


def frames_ahead(owner: Owner) -> int:
    """Writes what is due to a new disk. Returns how many frames can become free before a page has to be written."""
    commands: list[Command] = []
    writes = WriteBehind(owner, DiskOptions(path=(Path("/d"),), size=(1 << 30,), write_behind=0.02), Budget(0))
    device = writes.add(0, "/d")
    owner.disk_open(1000, WriteRule.EVICTED)
    device.begin(commands.append, b"", 0)
    writes.tidy()
    while commands:
        command = commands.pop(0)
        if isinstance(command, Write):
            writes.wrote(device, Wrote(command.number, bytes([Stored.DONE]) * (len(command.entries) // 4), "", 0))
    return owner.frames_before_unwritten(FRAMES)


def fill(owner: Owner, session: Session, pages: int) -> None:
    for number in range(pages):
        store(owner, session, [number])
        owner.settle()


def test_little_of_memory_is_written_ahead_with_lru(owner: Owner, session: Session, virtual_time: OwnTimeLoop) -> None:
    fill(owner, session, 2 * ROUND)
    assert 1 <= frames_ahead(owner) < FRAMES // 3


def test_a_third_of_memory_is_written_ahead_for_a_policy_that_chooses(
    owner: Owner, session: Session, virtual_time: OwnTimeLoop
) -> None:
    """Only a written page may leave, so the policy chooses among those."""
    owner.learn_returns()
    fill(owner, session, 2 * ROUND)
    assert owner.eviction().learned and not owner.eviction().follows_lru
    assert frames_ahead(owner) >= FRAMES // 3


def test_little_of_memory_is_written_ahead_while_the_policy_learns(
    owner: Owner, session: Session, virtual_time: OwnTimeLoop
) -> None:
    owner.learn_returns()
    fill(owner, session, ROUND // 4)
    assert not owner.eviction().learned
    assert 1 <= frames_ahead(owner) < FRAMES // 3
