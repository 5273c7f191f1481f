"""Checks whether an arena fits this host before it is made, because later the kernel answers with SIGBUS or a kill."""

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

# The daemon without the parts below: its RssAnon is 23 MiB after its start and 33 MiB after 90 minutes. The rest is for
# sockets, stacks and buffers.
_DAEMON_BYTES = 48 << 20
# 8 bytes for each 4 KiB in the page tables of each process that maps the memory, and about as much in the kernel's own
# list of the pages.
MAPPING_SHARE = 512
# docs/sizing.md: half of the host's memory. The kernel keeps some per cent of what the host is sold with.
_MOST_OF_HOST = 0.55
# What is charged to a control group beside its processes' memory varies by about 1 MiB from one start to the next.
OFFER_MARGIN = 4 << 20


class Processes(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the daemon's processes beside the segments.

    Attributes:
        fixed: Bytes that do not depend on the arena.
        mapping: The number of processes that map the arena.
        batch_part: A batch of writes to disk takes this part of the arena (1 / batch_part), ...
        most_batch: ... but at most this many bytes.
    """

    fixed: int = _DAEMON_BYTES
    mapping: int = 1
    batch_part: int = 1
    most_batch: int = 0

    def beside(self, arena: int) -> int:
        """Returns the bytes that the processes take beside an arena of `arena` bytes."""
        mapped = arena * (self.mapping + 1) // MAPPING_SHARE
        return self.fixed + mapped + min(arena // self.batch_part, self.most_batch)


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that an arena needs.

    Attributes:
        arena: Bytes of the arena.
        frame: Bytes of a frame. Only whole frames are made.
        index_fixed: Bytes of the index that do not depend on the arena.
        index_per_frame: Bytes of the index for each frame.
        in_memory: Bytes of all this that are in memory already, in segments of an earlier daemon that are adopted.
        processes: What the processes need beside the segments.
    """

    arena: int
    frame: int
    index_fixed: int = 0
    index_per_frame: int = 0
    in_memory: int = 0
    processes: Processes = Processes()

    @property
    def frames(self) -> int:
        """The number of whole frames."""
        return self.arena // self.frame


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One memory limit of the host.

    Attributes:
        name: The limit in words, for messages.
        room: Bytes left under the limit.
        largest: Bytes of the largest arena that fits now.
        offered: Bytes of the largest arena that fits with a margin, or `largest` if that is smaller than the margin.
        beside: Bytes of the room that the processes would take beside that arena.
        remedy: How an administrator can raise the limit.
    """

    name: str
    room: int
    largest: int
    offered: int
    beside: int
    remedy: str


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check: the limits, the tightest first. There are none if the host reports none."""

    need: Need
    limits: tuple[Limit, ...]

    @property
    def fits(self) -> bool:
        """Whether each limit leaves room for all frames."""
        return all(limit.largest >= self.need.frames * self.need.frame for limit in self.limits)

    @property
    def largest(self) -> int | None:
        """Bytes of the largest arena, in whole frames, that would fit; None if the host reports no limit."""
        return self.limits[0].largest if self.limits else None

    @property
    def offered(self) -> int:
        """Bytes of the arena that messages offer: it still fits if the next start finds a little less room."""
        return min((limit.offered for limit in self.limits), default=0)

    def explain(self) -> str:
        """Returns for administrators that the arena fits, or which limit it exceeds, what would fit, what to do."""
        wanted = format_size(self.need.arena)
        if self.fits:
            return f"an arena of {wanted} fits"
        tightest = self.limits[0]
        left = f"{tightest.name} has {format_size(tightest.room)} left"
        if tightest.beside:
            left += f", of which the daemon's processes take {format_size(tightest.beside)}"
        return f"an arena of {wanted} does not fit: {left}. {_offer(self.offered)}, or {tightest.remedy}"


def _offer(size: int) -> str:
    if not size:
        return "No frame fits beside the index: configure a smaller index or smaller frames"
    return f'{format_size(size)} would fit: arena.size = "{spell_size(size)}"'


def fit(host: Host, need: Need) -> Fit:
    """Returns whether `host` has room for `need` now.

    Other processes may take the room before the arena is populated.
    """
    return Fit(need=need, limits=tuple(sorted(_limits(host, need), key=lambda limit: limit.largest)))


def _limits(host: Host, need: Need) -> Iterator[Limit]:
    shm = host.shared_memory()
    if shm.free is not None:
        remedy = "enlarge it (mount -o remount,size=SIZE /dev/shm; for a container --shm-size or its like)"
        largest = _largest(shm.free, need, fixed=0, each=need.frame)
        yield Limit(name="/dev/shm", room=shm.free, largest=largest, offered=largest, beside=0, remedy=remedy)
    for group in host.memory_groups():
        yield _memory_limit(f"the control group ({group.file})", group.room, need, "raise the group's limit")
    available = host.memory().available
    if available is not None:
        yield _memory_limit("this host's memory (MemAvailable)", available, need, "free some memory")


def _memory_limit(name: str, room: int, need: Need, remedy: str) -> Limit:
    largest = _largest_beside_processes(room, need)
    offered = _largest_beside_processes(room - OFFER_MARGIN, need) or largest
    beside = need.processes.beside(largest)
    return Limit(name=name, room=room, largest=largest, offered=offered, beside=beside, remedy=remedy)


def _largest_beside_processes(room: int, need: Need) -> int:
    taken = need.processes
    each = need.frame + need.frame * (taken.mapping + 1) // MAPPING_SHARE
    # The batch is a part of the arena but has a largest size. The smaller one of the two applies.
    with_part = _largest(room, need, fixed=taken.fixed, each=each + need.frame // taken.batch_part)
    with_most = _largest(room, need, fixed=taken.fixed + taken.most_batch, each=each)
    return max(with_part, with_most)


def _largest(room: int, need: Need, *, fixed: int, each: int) -> int:
    """Returns the bytes of the most frames that fit into `room` together with the index and the given costs."""
    return max(0, room + need.in_memory - need.index_fixed - fixed) // (each + need.index_per_frame) * need.frame


def too_large(host: Host, arena: int) -> str:
    """Returns a warning if an arena of so many bytes leaves engines less of the host than they need; else "".

    The limit of a group above the daemon's own counts as the host's memory. Its own may have room for the daemon only,
    as that of a container.
    """
    total = host.memory().total
    sizes = [(total, "this host's memory")] if total is not None else []
    above = [group for group in host.memory_groups() if group.above]
    sizes += [(group.limit, f"the control group's memory ({group.file})") for group in above]
    size, name = min(sizes, default=(0, ""))
    if not _MOST_OF_HOST * size < arena <= size:  # a larger one does not fit, which is an error
        return ""
    taken = f"arena.size = {format_size(arena)} is {arena / size:.0%} of {name}, {format_size(size)}"
    return f"{taken}: leave engines half of it or more (docs/sizing.md)"


# Private memory of the daemon for each entry of the index: 24 for its place in each of three lists
# (`bench/large_host.py`), and for evict.policy = cadence, which a reload may set, 4 for the leaves and 3 for the guard.
_ENTRY_BYTES = 31
# What it remembers of pages that left: four records of 12 bytes for each entry (`shm/core/daemon/cadence/ghosts.h`).
_GHOSTS_ENTRY_BYTES, _MOST_GHOSTS_BYTES = 48, 64 << 20
# RssAnon of the HTTP process, after a scrape, is 20 MiB.
_HTTP_BYTES = 24 << 20
# RssAnon of the disk worker is 18 MiB. The rest is what LMDB keeps of the transactions of its largest batch.
_WORKER_BYTES = 24 << 20


def geometry_of(config: Config) -> Geometry:
    """Returns the geometry of the segments to make. Raises ShmError if the arena has no room for a frame."""
    arena, index = config.arena, config.index
    if not arena.frames:
        raise ShmError(f"an arena of {arena.size} bytes has no room for a frame of {arena.frame_size}")
    return Geometry(arena.frame_size, arena.frames, config.entries, index.namespaces)


def serves(have: Geometry, config: Config) -> bool:
    """Returns whether existing segments fit the configuration.

    They do if they have its geometry, or differ only because their index was made for another size of the disk.
    """
    wanted = geometry_of(config)
    return have == wanted or (not config.index.entries and structs.replace(have, entries=wanted.entries) == wanted)


def short_index(have: Geometry, config: Config) -> str:
    """Returns a warning if the index was made for a smaller disk, which limits the pages on this one; else ""."""
    if have.entries >= config.entries:
        return ""
    size = ",".join(map(spell_size, config.disk.size))
    return (
        f"the index has room for {have.entries:,} pages, but disk.size = {size} needs {config.entries:,}: "
        "a stop and a start make a larger index"
    )


def need_of(config: Config, in_memory: int = 0) -> Need:
    """Returns the memory for the segments, of which `in_memory` bytes exist. Raises ShmError as geometry_of does."""
    geometry = geometry_of(config)
    index, locks, arena = geometry.sizes
    fixed = index + locks if config.index.entries else _index_of_disk(geometry)
    return Need(
        arena=arena,
        frame=geometry.frame_bytes,
        index_fixed=fixed,
        index_per_frame=-(-(index + locks - fixed) // geometry.frames),
        in_memory=in_memory,
        processes=processes_of(config),
    )


def _index_of_disk(geometry: Geometry) -> int:
    """Returns the bytes of the index with an arena of one frame: its part for pages on disk does not shrink."""
    least = structs.replace(geometry, frames=1, entries=geometry.entries - geometry.frames + 1)
    index, locks, _ = least.sizes
    return index + locks


def processes_of(config: Config) -> Processes:
    """Returns what the daemon takes beside its segments, with HTTP and the disk worker if configured."""
    serves_http = config.metrics.listen is not None or config.http.listen
    ghosts = min(config.entries * _GHOSTS_ENTRY_BYTES, _MOST_GHOSTS_BYTES)
    daemon = Processes().fixed + config.entries * _ENTRY_BYTES + ghosts + (_HTTP_BYTES if serves_http else 0)
    disk = config.disk
    if not disk.size:
        return Processes(fixed=daemon)
    # Beside its heap: what each environment wrote last is in the page cache until its device has it. The files are
    # mapped, and the page tables of what was read or dropped stay.
    workers = len(disk.devices)
    underway = min(BATCH_BYTES, workers * disk.environments * TRANSACTION_BYTES)
    heaps = workers * _WORKER_BYTES + underway + disk.total_size // MAPPING_SHARE
    return Processes(fixed=daemon + heaps, mapping=1 + workers, batch_part=SMALLEST_PART, most_batch=BATCH_BYTES)
