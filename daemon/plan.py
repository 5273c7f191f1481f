"""What a configuration asks of the host: the geometry of its segments, and the memory that they take."""

from __future__ import annotations

from msgspec import structs

from ..shm._core import ShmError
from ..shm.segments import Geometry
from .fit import Need
from .options import Config


def geometry_of(config: Config) -> Geometry:
    """What the segments are made with. Raises ShmError where the arena holds no frame."""
    arena, index = config.arena, config.index
    if not arena.frames:
        raise ShmError(f"an arena of {arena.size} bytes holds no frame of {arena.frame_size}")
    return Geometry(arena.frame_size, arena.frames, config.entries, index.namespaces)


def serves(have: Geometry, config: Config) -> bool:
    """Whether warm segments do for it: they are as it asks for, or their index is for another size of the disk."""
    wanted = geometry_of(config)
    return have == wanted or (not config.index.entries and structs.replace(have, entries=wanted.entries) == wanted)


def need_of(config: Config, held: int = 0) -> Need:
    """The memory for them; `held` bytes of it are taken already. Raises ShmError as geometry_of does."""
    geometry = geometry_of(config)
    index, locks, arena = geometry.sizes
    if config.index.entries:
        return Need(arena=arena, frame=geometry.frame_bytes, index_fixed=index + locks, held=held)
    share = (index + locks) // geometry.frames
    return Need(arena=arena, frame=geometry.frame_bytes, index_per_frame=share, held=held)
