"""Whether settings fit each other that are each right alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

from pagetier.daemon.config.schema import MOST_FRAMES, Config, DiskOptions
from pagetier.shm.units import format_size, spell_size
from pagetier.tiers.capacity import holds_any, least_cap

# Its files are mapped, beside the arena and into several processes: half of the addresses that a process has.
MOST_MAPPED: Final = 1 << 46


def wrong_disk_size(config: Config) -> str:
    """Why no tier can be of `disk.size`, behind its name and value; or ""."""
    disk, frame = config.disk, config.arena.frame_size
    if not disk.size:
        return ""
    if disk.size > MOST_MAPPED:
        return f"is more than can be mapped: at most {spell_size(MOST_MAPPED)}"
    if not holds_any(disk.size, disk.environments, frame):
        least = least_cap(disk.environments, frame)
        parts = f"{disk.environments} environments of frames of {spell_size(frame)}"
        return f"has no room for a page in each part: at least {spell_size(least)} for {parts}"
    if not config.index.entries and config.arena.frames + disk.size // frame > MOST_FRAMES:
        return (
            f"has more frames of {spell_size(frame)} than the index can have pages ({MOST_FRAMES}): "
            "set a larger arena.frame_size, or index.entries"
        )
    return ""


def beyond_its_disk(disk: DiskOptions, total: int) -> str:
    """That the file system, of so many bytes, is full before the tier is, if that is so; total: 0 if unknown."""
    if not total or disk.size <= total:
        return ""
    return (
        f"disk.size = {spell_size(disk.size)} is more than the file system of {disk.path} has "
        f"({format_size(total)}): it will be full before the tier is"
    )


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
