"""Whether an arena fits this host: asked before it is made, because later the kernel answers with SIGBUS or a kill."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import structs

from pagetier.daemon.config.schema import BATCH_BYTES, SMALLEST_PART, Config
from pagetier.daemon.host.host import Host
from pagetier.shm._core import ShmError
from pagetier.shm.geometry import Geometry
from pagetier.shm.units import format_size, spell_size
from pagetier.tiers.capacity import TRANSACTION_BYTES

# the daemon alone: its RssAnon is 23 MiB after its start and 33 after 90 minutes; sockets, stacks and buffers beside it
_DAEMON_BYTES = 48 << 20
# 8 bytes for each 4 KiB: in the page tables of who maps it, and about as much in the kernel's own list of what is there
MAPPING_SHARE = 512


class Processes(msgspec.Struct, frozen=True, kw_only=True):
    """What the processes take beside the segments, of which `mapping` of them map the arena.

    They take `fixed` bytes, and a `batch_part`th of the arena, up to `most_batch` bytes: what is written at once.
    """

    fixed: int = _DAEMON_BYTES
    mapping: int = 1
    batch_part: int = 1
    most_batch: int = 0

    def beside(self, arena: int) -> int:
        """Bytes beside an arena of so many."""
        mapped = arena * (self.mapping + 1) // MAPPING_SHARE
        return self.fixed + mapped + min(arena // self.batch_part, self.most_batch)


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What an arena of `arena` bytes takes: whole frames of `frame` bytes, and index and processes beside it.

    The index takes `index_fixed` bytes and `index_per_frame` for each frame. `held` bytes of all this are in memory
    already: segments of an earlier daemon that are taken over.
    """

    arena: int
    frame: int
    index_fixed: int = 0
    index_per_frame: int = 0
    held: int = 0
    processes: Processes = Processes()

    @property
    def frames(self) -> int:
        """Whole frames asked for."""
        return self.arena // self.frame


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit of the host: `room` bytes are left under it, and an arena of `largest` bytes would fit.

    Beside that the processes take `beside` bytes of the room.
    """

    name: str
    room: int
    largest: int
    beside: int
    remedy: str


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: the limits, the tightest first. No limits: the host told none."""

    need: Need
    limits: tuple[Limit, ...]

    @property
    def fits(self) -> bool:
        """Whether every limit leaves room for the frames asked for."""
        return all(limit.largest >= self.need.frames * self.need.frame for limit in self.limits)

    @property
    def largest(self) -> int | None:
        """Bytes of the largest arena, in whole frames, that would fit; None where the host told no limit."""
        return self.limits[0].largest if self.limits else None

    def explain(self) -> str:
        """One sentence or two for people: that it fits, or which limit is in the way, what would fit, what to do."""
        wanted = format_size(self.need.arena)
        if self.fits:
            return f"an arena of {wanted} fits"
        tightest = self.limits[0]
        left = f"{tightest.name} has {format_size(tightest.room)} left"
        if tightest.beside:
            left += f", of which the daemon's processes take {format_size(tightest.beside)}"
        return f"an arena of {wanted} does not fit: {left}. {_offer(tightest.largest)}, or {tightest.remedy}"


def _offer(largest: int) -> str:
    if not largest:
        return "Not even one frame would fit beside the index: ask for a smaller index or smaller frames"
    return f'{format_size(largest)} would fit: arena.size = "{spell_size(largest)}"'


def fit(host: Host, need: Need) -> Fit:
    """Whether `host` has room for `need` now. Other processes may take the room later; populating finds that out."""
    return Fit(need=need, limits=tuple(sorted(_limits(host, need), key=lambda limit: limit.largest)))


def _limits(host: Host, need: Need) -> Iterator[Limit]:
    shm = host.shared_memory()
    if shm.free is not None:
        remedy = "enlarge it (mount -o remount,size=SIZE /dev/shm; for a container --shm-size or its like)"
        largest = _largest(shm.free, need, fixed=0, each=need.frame)
        yield Limit(name="/dev/shm", room=shm.free, largest=largest, beside=0, remedy=remedy)
    for group in host.memory_groups():
        yield _memory_limit(f"the control group ({group.file})", group.room, need, "raise the group's limit")
    available = host.memory().available
    if available is not None:
        yield _memory_limit("this host's memory (MemAvailable)", available, need, "free some memory")


def _memory_limit(name: str, room: int, need: Need, remedy: str) -> Limit:
    taken = need.processes
    each = need.frame + need.frame * (taken.mapping + 1) // MAPPING_SHARE
    # the batch is a part of the arena, or the most that it can be: the smaller one of the two is taken
    with_part = _largest(room, need, fixed=taken.fixed, each=each + need.frame // taken.batch_part)
    with_most = _largest(room, need, fixed=taken.fixed + taken.most_batch, each=each)
    largest = max(with_part, with_most)
    return Limit(name=name, room=room, largest=largest, beside=taken.beside(largest), remedy=remedy)


def _largest(room: int, need: Need, *, fixed: int, each: int) -> int:
    """Bytes of the most frames for which frames, index and the given cost fit into `room`."""
    return max(0, room + need.held - need.index_fixed - fixed) // (each + need.index_per_frame) * need.frame


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
