"""The settings of the daemon: one Struct for each table of the configuration, and `fields`, derived from them.

The Structs are the only list of keys: the names of variables, readers, defaults and help texts follow from them.
`arena.size` is `size` in the file's table `[arena]`, `PAGETIER_ARENA_SIZE` and `--set arena.size=VALUE`.

A field without a `Setting` is a constant: no file, variable or flag changes it. Tests and benchmarks that need another
value pass it to the Struct; see `pagetier.daemon.main.Invocation`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from pagetier.daemon.config.address import Address, address_setting, addresses_setting
from pagetier.daemon.config.disk_options import DiskOptions
from pagetier.daemon.config.id_ranges import IdRanges, group_setting, groups_setting, users_setting
from pagetier.daemon.config.path_types import file_setting, socket_setting
from pagetier.daemon.config.quota import TenantQuota, quota_setting
from pagetier.daemon.config.remote_options import RemoteOptions
from pagetier.daemon.config.value_types import (
    Section,
    arena_setting,
    choice_setting,
    count_setting,
    frame_setting,
    mode_setting,
    name_setting,
    share_setting,
)
from pagetier.shm._core import LEAST_FRAME_BYTES
from pagetier.shm.geometry import DEFAULT_FRAME_BYTES
from pagetier.shm.socket_path import default_socket

BATCH_BYTES: Final = 128 << 20
SMALLEST_PART: Final = 8  # of the arena: a page that is being written to disk cannot be evicted until the disk is done


PREFIX = "PAGETIER_"
# The core treats an index of more pages as corrupt.
MOST_FRAMES = 1 << 30


class ArenaOptions(Section, frozen=True, kw_only=True):
    """The shared memory for pages."""

    size: Annotated[
        int,
        arena_setting(
            "Size of the arena, rounded down to whole frames; 25%: a quarter of this host's memory.", LEAST_FRAME_BYTES
        ),
    ] = 1 << 30
    frame_size: Annotated[
        int,
        frame_setting(
            "Size of a frame: a power of two, no larger than a page. A change needs an empty disk tier, or --fresh."
        ),
    ] = DEFAULT_FRAME_BYTES
    prefault: Annotated[
        Literal["populate", "lazy"],
        choice_setting("Allocate all memory at the start, or when a page first needs it.", "populate", "lazy"),
    ] = "populate"
    huge_pages: Annotated[
        Literal["never", "advise"],
        choice_setting("Use huge pages for the arena where /dev/shm allows them.", "never", "advise"),
    ] = "advise"
    numa: Annotated[
        Literal["local", "interleave"],
        choice_setting("Place the arena near the daemon, or on all NUMA nodes.", "local", "interleave"),
    ] = "local"

    process_share: Annotated[
        float,
        share_setting(
            "Share of the arena that one process may have reserved and not yet written, and that one attachment may"
            " pin before its matches end early, if the arena has 1,024 frames or more; 0: no limit."
        ),
    ] = 0.9

    @property
    def frames(self) -> int:
        """The number of whole frames in the arena."""
        return self.size // self.frame_size

    @property
    def whole_size(self) -> int:
        """Bytes of the arena, rounded down to whole frames."""
        return self.frames * self.frame_size


class IndexOptions(Section, frozen=True, kw_only=True):
    """The shared index of pages."""

    entries: Annotated[
        int, count_setting("Pages that the index can hold; 0: one per frame of memory and disk.", 0, MOST_FRAMES)
    ] = 0
    namespaces: int = 1024  # that the index can hold
    # When the table of namespaces is full, those that were not used for so many seconds are dropped with their pages,
    # the least recently used first. A namespace counts as used while one of its pages is pinned or being written, when
    # one is stored, matched or read from disk, and when the daemon finds it on disk at start.
    namespace_idle: float = 600.0


class EvictOptions(Section, frozen=True, kw_only=True):
    """Which page leaves the arena first, and what the evictor keeps free."""

    policy: Annotated[
        str,
        choice_setting(
            "Evict the page that is expected to return last, learned from how prompts return, or the least recently"
            " used one.",
            "cadence",
            "lru",
        ),
    ] = "cadence"
    keep_share: Annotated[
        float, share_setting("Share of the arena that may be kept by request: its pages are evicted last.")
    ] = 0.5
    free: Annotated[
        float, share_setting("Evict until this share of the frames is free, as soon as less than half of it is.")
    ] = 0.01


class StoreOptions(Section, frozen=True, kw_only=True):
    """Storing pages."""

    reservation_timeout: float = 60.0  # seconds that a live writer may keep a reservation
    quarantine: float = 0.25  # seconds that memory of a dead process is not reused: its GPU may still write to it


class AccessOptions(Section, frozen=True, kw_only=True):
    """Users that may attach or observe, besides root and the daemon's own user."""

    authorize_by: Annotated[
        Literal["lists", "socket"],
        choice_setting(
            "Which processes may attach: those of listed users and groups, or all that the folder and the mode of the"
            " socket let connect.",
            "lists",
            "socket",
        ),
    ] = "lists"
    users: Annotated[
        IdRanges,
        users_setting(
            "Users (names, numbers, ranges such as 65536-131071) that may attach; a change detaches no engine."
        ),
    ] = ()
    groups: Annotated[
        IdRanges,
        groups_setting("Groups (names, numbers, ranges) that may attach; a change detaches no engine."),
    ] = ()
    watch_users: Annotated[
        IdRanges,
        users_setting("Users (names, numbers, ranges) that may only observe (stats, top); see socket_mode."),
    ] = ()
    watch_groups: Annotated[
        IdRanges,
        groups_setting("Groups (names, numbers, ranges) that may only observe (stats, top); see socket_mode."),
    ] = ()
    socket_group: Annotated[
        tuple[int, ...], group_setting("Group of the control socket, one of the daemon's own; empty: its primary one.")
    ] = ()
    socket_mode: Annotated[
        int,
        mode_setting(
            "Permission bits, in octal, of the control socket and of paths in http.listen and metrics.listen. 0666 lets"
            " every user open it; the daemon still rejects users that are not listed, unless authorize_by is socket."
        ),
    ] = 0o660


class LogOptions(Section, frozen=True, kw_only=True):
    """The log."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        choice_setting("Lowest level that is logged.", "debug", "info", "warning", "error"),
    ] = "info"


class MetricsOptions(Section, frozen=True, kw_only=True):
    """Metrics for Prometheus: counters, read at each scrape."""

    listen: Annotated[
        Address | None,
        address_setting("Address of /metrics: a port of this host, or the path of a socket; empty: none."),
    ] = None
    namespaces: int = 50  # the largest, that get their own metrics; the rest is summed


class HttpOptions(Section, frozen=True, kw_only=True):
    """The HTTP interface: lookups, prefetch, hints, statistics, metrics and health; a process of its own."""

    listen: Annotated[
        tuple[Address, ...],
        addresses_setting(
            "Addresses of the HTTP interface: paths of sockets, and ports of this host; empty: none. It may name the"
            " address of metrics.listen too."
        ),
    ] = ()
    token_file: Annotated[
        Path | None,
        file_setting(
            "File with the token that callers of a port must send, except for /metrics and /healthz; readable by the"
            " daemon's user only. A reload reads it again."
        ),
    ] = None


class Config(Section, frozen=True, kw_only=True):
    """The configuration of the daemon. Sizes are in bytes, durations in seconds, users and groups are IDs."""

    name: Annotated[str, name_setting("Name of the shared memory segments, different for each daemon.")] = "pagetier"
    socket: Annotated[Path, socket_setting("Path of the control socket. Its folder is created if needed.")] = (
        msgspec.field(default_factory=default_socket)
    )
    quota: Annotated[
        tuple[TenantQuota, ...],
        quota_setting(
            "What the namespaces that a pattern matches may have of the arena and of each device of the disk tier, and"
            " keep: a table in the file (see Quotas)."
        ),
    ] = ()
    arena: ArenaOptions = ArenaOptions()
    index: IndexOptions = IndexOptions()
    evict: EvictOptions = EvictOptions()
    store: StoreOptions = StoreOptions()
    disk: DiskOptions = DiskOptions()
    remote: RemoteOptions = RemoteOptions()
    access: AccessOptions = AccessOptions()
    log: LogOptions = LogOptions()
    metrics: MetricsOptions = MetricsOptions()
    http: HttpOptions = HttpOptions()

    @property
    def entries(self) -> int:
        """The capacity of the index in pages: by default one for each frame of memory and disk."""
        frame = self.arena.frame_size
        on_disk = sum(device.size // frame for device in self.disk.devices)
        if self.disk.compress == "on":
            on_disk += on_disk // 2  # no codec needs less than two thirds of a page
        return self.index.entries or min(MOST_FRAMES, self.arena.frames + on_disk)
