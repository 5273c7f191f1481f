"""Whether settings fit each other that are each right alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from pagetier.daemon.config.disk_size import wrong_disk_size
from pagetier.daemon.config.schema import MOST_FRAMES, Config
from pagetier.shm.units import spell_size

# a setting and its value as they are told, with the place that they are from
Telling: TypeAlias = Callable[[str, str], str]


def wrong_together(config: Config, told: Telling) -> str:
    """The first thing that does not fit; "" if there is none."""
    checks = (_of_arena, _of_disk, _of_shares, _of_sockets)
    return next((wrong for check in checks for wrong in check(config, told)), "")


def _of_arena(config: Config, told: Telling) -> Iterator[str]:
    arena = config.arena
    size = told("arena.size", spell_size(arena.size))
    frame = told("arena.frame_size", spell_size(arena.frame_size))
    if not arena.frames:
        yield f"{size} has no room for one frame: {frame}"
    if arena.frames > MOST_FRAMES:
        yield f"{size} has more than {MOST_FRAMES} frames: {frame}"


def _of_disk(config: Config, told: Telling) -> Iterator[str]:
    disk = config.disk
    if disk.size and not disk.path:
        yield f"{told('disk.size', spell_size(disk.size))} needs a folder: set disk.path"
    if disk.path and not disk.size:
        yield f"{told('disk.path', str(disk.path))} needs a size: set disk.size"
    if why := wrong_disk_size(config):
        yield f"{told('disk.size', spell_size(disk.size))} {why}"


def _of_shares(config: Config, told: Telling) -> Iterator[str]:
    evict = config.evict
    if evict.low > evict.high:
        yield f"{told('evict.low', str(evict.low))} is more than {told('evict.high', str(evict.high))}"


def _of_sockets(config: Config, told: Telling) -> Iterator[str]:
    path = config.metrics.listen.path if config.metrics.listen is not None else None
    if path is not None and _is_same_place(path, config.socket):
        control = told("socket", str(config.socket))
        yield f"{told('metrics.listen', str(path))} is where engines attach: {control}"


def _is_same_place(one: Path, other: Path) -> bool:
    """Whether two sockets would have one name; /var/run is /run."""
    return one.name == other.name and os.path.realpath(one.parent) == os.path.realpath(other.parent)
