"""What the daemon can be told: a Struct for each table of the configuration, and `fields`, derived from them.

The Structs are the only list of keys: names of variables and flags, readers, defaults and help texts come
from them. `arena.size` is `size` in the file's table `[arena]`, `PAGETIER_ARENA_SIZE` and `--arena-size`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from pagetier.daemon.config.value_types import (
    Address,
    Setting,
    address_setting,
    choice_setting,
    count_setting,
    duration_setting,
    folder_setting,
    frame_setting,
    group_setting,
    groups_setting,
    mode_setting,
    name_setting,
    pause_setting,
    share_setting,
    size_setting,
    socket_setting,
    users_setting,
)
from pagetier.shm.socket_path import default_socket

BATCH_BYTES: Final = 128 << 20
SMALLEST_PART: Final = 8  # of the arena: what is being written can not leave, however long the disk takes


PREFIX = "PAGETIER_"
# the core takes an index of more pages for a damaged one
MOST_FRAMES = 1 << 30


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the configuration."""


class ArenaOptions(Section, frozen=True, kw_only=True):
    """The shared memory that pages live in."""

    size: Annotated[int, size_setting("Bytes of the arena, rounded down to whole frames.", 4096)] = 1 << 30
    frame_size: Annotated[int, frame_setting("Bytes of a frame: a power of two, as small as pages are.")] = 1 << 20
    prefault: Annotated[
        Literal["populate", "lazy"],
        choice_setting("Take all memory at start, or when a page first needs it.", "populate", "lazy"),
    ] = "populate"
    threads: Annotated[int, count_setting("Threads that populate the arena; 0: as it fits.", 0, 1024)] = 0
    huge_pages: Annotated[
        Literal["never", "advise"],
        choice_setting("Ask for huge pages, where the host allows them.", "never", "advise"),
    ] = "never"
    numa: Annotated[
        Literal["local", "interleave"],
        choice_setting("Place the arena near the daemon, or over all NUMA nodes.", "local", "interleave"),
    ] = "local"

    @property
    def frames(self) -> int:
        """Whole frames in the arena."""
        return self.size // self.frame_size

    @property
    def whole_size(self) -> int:
        """Bytes of the arena, rounded down to whole frames."""
        return self.frames * self.frame_size


class IndexOptions(Section, frozen=True, kw_only=True):
    """The shared index of pages."""

    entries: Annotated[
        int, count_setting("Pages that the index holds; 0: one per frame of memory and disk.", 0, MOST_FRAMES)
    ] = 0
    namespaces: Annotated[int, count_setting("Namespaces that the index holds.", 1, 1 << 20)] = 1024
    namespace_idle: Annotated[
        float,
        duration_setting(
            "A full table drops namespaces that were not used for this time, with their pages, the oldest first. One is"
            " used while a page of it is pinned or being written, when one is stored, found or read in, and when the"
            " daemon finds it on disk at its start."
        ),
    ] = 600.0


class EvictOptions(Section, frozen=True, kw_only=True):
    """When pages leave ahead of need: free shares of the arena at which the evictor starts and stops."""

    low: Annotated[float, share_setting("Evict when less than this share of the frames is free.")] = 0.005
    high: Annotated[float, share_setting("Evict until this share of the frames is free.")] = 0.01


class StoreOptions(Section, frozen=True, kw_only=True):
    """Storing pages."""

    expiry: Annotated[float, duration_setting("How long a living writer may hold a reservation.")] = 60.0
    share: Annotated[
        float,
        share_setting(
            "Share of an arena of 1,024 frames and more that one process may have reserved and not written yet; 0: any."
        ),
    ] = 0.9
    quarantine: Annotated[
        float, pause_setting("How long the memory of a dead process stays out of use: its GPU may still write.")
    ] = 0.25


class MatchOptions(Section, frozen=True, kw_only=True):
    """Finding pages."""

    share: Annotated[
        float,
        share_setting(
            "Share of an arena of 1,024 frames and more that one attachment may pin: its matches end there; 0: any."
        ),
    ] = 0.9


class DiskOptions(Section, frozen=True, kw_only=True):
    """The disk tier: pages outlive memory, the daemon and the host."""

    path: Annotated[Path | None, folder_setting("Folder of the disk tier, made if need be.")] = None
    size: Annotated[int, size_setting("Bytes that its files may take; 0: no disk tier.")] = 0
    write: Annotated[
        Literal["evict", "through", "second"],
        choice_setting(
            "Write pages before they leave memory, all at once, or before they leave if they were used again.",
            "evict",
            "through",
            "second",
        ),
    ] = "evict"
    ahead: Annotated[float, share_setting("Share of the arena that is written ahead of its eviction.")] = 0.1
    patience: Annotated[
        float, duration_setting("How long a store may wait for the disk, rather than lose pages unwritten.")
    ] = 0.005
    budget: Annotated[int, size_setting("Bytes that may be written a day; 0: any number.")] = 0
    sync: Annotated[float, duration_setting("Longest time from writing a page to its sync.")] = 10.0
    environments: Annotated[int, count_setting("LMDB environments that share the work.", 1, 64)] = 4
    stop: Annotated[float, duration_setting("How long a stop may take to write what is unwritten.")] = 30.0


class AccessOptions(Section, frozen=True, kw_only=True):
    """Who may attach or look, beside the daemon's own user and root."""

    users: Annotated[
        tuple[int, ...], users_setting("Users (names or numbers) who may attach; who is attached stays so.")
    ] = ()
    groups: Annotated[
        tuple[int, ...], groups_setting("Groups (names or numbers) who may attach; who is attached stays so.")
    ] = ()
    watch_users: Annotated[
        tuple[int, ...],
        users_setting("Users who may look (stats, top), and do nothing else; see socket_mode."),
    ] = ()
    watch_groups: Annotated[
        tuple[int, ...],
        groups_setting("Groups who may look (stats, top), and do nothing else; see socket_mode."),
    ] = ()
    socket_group: Annotated[
        tuple[int, ...], group_setting("Group of the control socket, one of the daemon's own; empty: its first.")
    ] = ()
    socket_mode: Annotated[
        int,
        mode_setting(
            "Permission bits of the control socket, and of metrics.listen where that is a path, octal. 0666 lets"
            " everybody open it, and who is named nowhere is refused."
        ),
    ] = 0o660


class LogOptions(Section, frozen=True, kw_only=True):
    """What is logged."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        choice_setting("The least severe lines to log.", "debug", "info", "warning", "error"),
    ] = "info"


class MetricsOptions(Section, frozen=True, kw_only=True):
    """Metrics for Prometheus: counters, read at each scrape."""

    listen: Annotated[
        Address | None, address_setting("Where /metrics is served: a port of this host, or a path; empty: not.")
    ] = None
    namespaces: Annotated[
        int, count_setting("Namespaces with metrics of their own: the largest; the others are added up.", 0, 10_000)
    ] = 50


class Config(Section, frozen=True, kw_only=True):
    """Everything the daemon is told. Sizes are bytes, durations seconds, users and groups ids."""

    name: Annotated[str, name_setting("Name of the shared segments; one per daemon.")] = "pagetier"
    socket: Annotated[Path, socket_setting("Path of the control socket.")] = msgspec.field(
        default_factory=default_socket
    )
    arena: ArenaOptions = ArenaOptions()
    index: IndexOptions = IndexOptions()
    evict: EvictOptions = EvictOptions()
    store: StoreOptions = StoreOptions()
    match: MatchOptions = MatchOptions()
    disk: DiskOptions = DiskOptions()
    access: AccessOptions = AccessOptions()
    log: LogOptions = LogOptions()
    metrics: MetricsOptions = MetricsOptions()

    @property
    def entries(self) -> int:
        """Pages that the index can hold: a frame each, in memory and on disk, where nothing else is said."""
        return self.index.entries or min(MOST_FRAMES, self.arena.frames + self.disk.size // self.arena.frame_size)


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One setting under all its names."""

    section: str
    key: str
    setting: Setting
    default: Any  # msgspec.NODEFAULT where the default depends on the host

    @property
    def path(self) -> str:
        """Its name in the file: "arena.size", "socket"."""
        return f"{self.section}.{self.key}" if self.section else self.key

    @property
    def parameter(self) -> str:
        """Its name as an identifier: "arena_size"."""
        return self.path.replace(".", "_")

    @property
    def variable(self) -> str:
        """Its environment variable: "PAGETIER_ARENA_SIZE"."""
        return PREFIX + self.parameter.upper()

    @property
    def flag(self) -> str:
        """Its flag: "--arena-size"."""
        return "--" + self.parameter.replace("_", "-")


def value_of(config: Config, field: Field) -> Any:
    """What a configuration says."""
    return getattr(getattr(config, field.section) if field.section else config, field.key)


def replaced(config: Config, values: Mapping[str, Any]) -> Config:
    """The configuration with other values, by `Field.path`, which nobody checks here."""
    for field in fields():
        if field.path in values:
            table = getattr(config, field.section) if field.section else config
            table = msgspec.structs.replace(table, **{field.key: values[field.path]})
            config = msgspec.structs.replace(config, **{field.section: table}) if field.section else table
    return config


@functools.cache
def fields() -> tuple[Field, ...]:
    """Every setting, in the order of the Structs."""
    return tuple(_fields_of(Config, ""))


def _fields_of(struct: type[msgspec.Struct], section: str) -> Iterator[Field]:
    for field in msgspec.structs.fields(struct):
        if isinstance(field.type, type) and issubclass(field.type, Section):
            yield from _fields_of(field.type, field.name)
        else:
            setting = next(extra for extra in field.type.__metadata__ if isinstance(extra, Setting))
            yield Field(section=section, key=field.name, setting=setting, default=field.default)
