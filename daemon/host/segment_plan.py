"""What a configuration asks of the host: the geometry of its segments, and the memory that they take."""

from __future__ import annotations

from msgspec import structs

from pagetier.daemon.config.schema import Config
from pagetier.daemon.disk.write_behind import BATCH_BYTES, SMALLEST_PART
from pagetier.daemon.host.capacity import MAPPING_SHARE, Need, Processes
from pagetier.shm._core import ShmError
from pagetier.shm.segments import Geometry
from pagetier.shm.units import spell_size
from pagetier.tiers.capacity import TRANSACTION_BYTES

# RssAnon of a daemon that was asked for its metrics, over that of one that has none
_METRICS_BYTES = 16 << 20
# RssAnon of the disk's worker is 18 MiB, and what LMDB keeps of the transactions of the largest batch that it had
_WORKER_BYTES = 24 << 20


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


def short_index(have: Geometry, config: Config) -> str:
    """That the index was made for a smaller disk, which keeps pages off this one, and what to do; or ""."""
    if have.entries >= config.entries:
        return ""
    size = spell_size(config.disk.size)
    return (
        f"the index holds {have.entries:,} pages, and {config.entries:,} would go with disk.size = {size}: "
        "small pages do not fill it until a stop and a start make a larger index"
    )


def need_of(config: Config, held: int = 0) -> Need:
    """The memory for them; `held` bytes of it are taken already. Raises ShmError as geometry_of does."""
    geometry = geometry_of(config)
    index, locks, arena = geometry.sizes
    fixed = index + locks if config.index.entries else _index_of_disk(geometry)
    return Need(
        arena=arena,
        frame=geometry.frame_bytes,
        index_fixed=fixed,
        index_per_frame=-(-(index + locks - fixed) // geometry.frames),
        held=held,
        processes=processes_of(config),
    )


def _index_of_disk(geometry: Geometry) -> int:
    """Bytes of the index that an arena of one frame would have: what the disk's pages take does not fall with it."""
    least = structs.replace(geometry, frames=1, entries=geometry.entries - geometry.frames + 1)
    index, locks, _ = least.sizes
    return index + locks


def processes_of(config: Config) -> Processes:
    """What the daemon takes beside its segments, with its metrics and its disk's worker where it has them."""
    daemon = Processes().fixed + (_METRICS_BYTES if config.metrics.listen is not None else 0)
    disk = config.disk
    if not disk.size:
        return Processes(fixed=daemon)
    # beside its heap: what each environment wrote last is in the page cache until its device has it, and the files are
    # mapped, whose page tables stay once they were read or dropped from
    underway = min(BATCH_BYTES, disk.environments * TRANSACTION_BYTES)
    worker = _WORKER_BYTES + underway + disk.size // MAPPING_SHARE
    return Processes(fixed=daemon + worker, mapping=2, batch_part=SMALLEST_PART, most_batch=BATCH_BYTES)
