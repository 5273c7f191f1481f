"""Whether a disk tier can be as large as it is asked to be: what store and index need, and what its disk has."""

from __future__ import annotations

from typing import Final

from pagetier.daemon.config.schema import MOST_FRAMES, Config, Disk
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


def beyond_its_disk(disk: Disk, total: int) -> str:
    """That the file system, of so many bytes, is full before the tier is, if that is so; total: 0 if unknown."""
    if not total or disk.size <= total:
        return ""
    return (
        f"disk.size = {spell_size(disk.size)} is more than the file system of {disk.path} has "
        f"({format_size(total)}): it will be full before the tier is"
    )
