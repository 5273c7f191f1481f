"""Tests how much of memory is written to disk ahead of eviction."""

from __future__ import annotations

from pathlib import Path

from anonymous_segments import attach
from disk_without_workers import disk_tier
from learning_index import LearningIndex
from pagetier.daemon.config.disk_options import DiskOptions
from pagetier.daemon.config.schema import Config
from pagetier.shm._core import Owner, WriteRule
from pagetier.shm.page_rows import PAGES_TO_WRITE
from pagetier.tiers.worker_protocol import Command, Stored, Write, Wrote
from virtual_time_loop import OwnTimeLoop

FRAMES = 64
ROUND = 256  # pages that the policy learns from before it chooses


def frames_ahead(owner: Owner, loop: OwnTimeLoop) -> int:
    """Writes what is due to a new disk. Returns how many frames can become free before a page has to be written."""
    commands: list[Command] = []
    options = DiskOptions(path=(Path("/d"),), size=(1 << 30,), write_behind=0.02)
    tier = disk_tier(owner, Config(disk=options), loop)
    (device,) = tier._devices
    owner.disk_open(1000, WriteRule.EVICTED)
    device.started(attach(owner, 0), commands.append)
    device.begin(b"")
    tier.write_behind.tidy()
    while commands:
        command = commands.pop(0)
        if isinstance(command, Write):
            device.hear(Wrote(command.number, bytes([Stored.DONE]) * PAGES_TO_WRITE.count(command.pages), "", 0))
    return owner.frames_before_unwritten(FRAMES)


def filled(engine: LearningIndex, prompts: int) -> LearningIndex:
    """Returns the engine after it stored so many prompts of one page."""
    for prompt in range(prompts):
        engine.use([prompt])
    return engine


def test_little_of_memory_is_written_ahead_with_lru(virtual_time: OwnTimeLoop) -> None:
    engine = filled(LearningIndex(FRAMES, learns=False), 2 * ROUND)
    assert 1 <= frames_ahead(engine.owner, virtual_time) < FRAMES // 3


def test_a_third_of_memory_is_written_ahead_for_a_policy_that_chooses(virtual_time: OwnTimeLoop) -> None:
    """Only a written page may leave, so the policy chooses among those."""
    engine = filled(LearningIndex(FRAMES), 2 * ROUND)
    assert engine.owner.eviction().learned and not engine.owner.eviction().follows_lru
    assert frames_ahead(engine.owner, virtual_time) >= FRAMES // 3


def test_little_of_memory_is_written_ahead_while_the_policy_learns(virtual_time: OwnTimeLoop) -> None:
    engine = filled(LearningIndex(FRAMES), ROUND // 4)
    assert not engine.owner.eviction().learned
    assert 1 <= frames_ahead(engine.owner, virtual_time) < FRAMES // 3
