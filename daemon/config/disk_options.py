"""The settings of the disk tier, and what they say of each of its devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from pagetier.daemon.config.path_types import folders_setting
from pagetier.daemon.config.value_types import (
    Section,
    choice_setting,
    duration_setting,
    size_setting,
    sizes_setting,
)
from pagetier.tiers.capacity import Compress, StoreName


class DeviceOptions(msgspec.Struct, frozen=True):
    """One device of the disk tier: its folder, and the size, the number of environments and the store there.

    `compress`: whether pages are compressed.
    """

    path: Path
    size: int
    environments: int
    store: StoreName
    compress: Compress = "off"


class DiskOptions(Section, frozen=True, kw_only=True):
    """The disk tier: pages survive eviction, a restart of the daemon and a reboot of the host."""

    path: Annotated[
        tuple[Path, ...],
        folders_setting(
            "Folder of the disk tier, created if needed; for several devices a list with a folder on each of them."
        ),
    ] = ()
    size: Annotated[
        tuple[int, ...],
        sizes_setting("Largest total size of the files in each folder, or a list with one for each; 0: no disk tier."),
    ] = ()
    write: Annotated[
        Literal["evict", "through", "second"],
        choice_setting(
            "Write pages before eviction (evict), as soon as possible (through), or before eviction if they were used"
            " again (second).",
            "evict",
            "through",
            "second",
        ),
    ] = "evict"
    # The least share of the arena that is written ahead of eviction: a third is while evict.policy chooses, and up to a
    # half if engines store as much.
    write_behind: float = 0.1
    store_timeout: float = 0.005  # seconds that a store may wait for the disk before unwritten pages are evicted
    store: Annotated[
        StoreName,
        choice_setting(
            "Where the bytes of pages lie: in files beside LMDB, past the page cache (files), or in LMDB (lmdb)."
            " A change needs an empty tier, or --fresh.",
            "files",
            "lmdb",
        ),
    ] = "files"
    compress: Annotated[
        Compress,
        choice_setting(
            "Compress pages without loss (on): a third more of bfloat16 fits. It needs disk.store = files, and cores to"
            " spare. A change empties the tier.",
            "off",
            "on",
        ),
    ] = "off"
    budget: Annotated[int, size_setting("Bytes that may be written per day, to all devices together; 0: no limit.")] = 0
    sync: Annotated[float, duration_setting("Longest time between writing a page and syncing it, on each device.")] = (
        10.0
    )
    environments: int = 4  # of LMDB, that share the work of a device
    discards: bool = False  # pages that only other settings read are discarded: the start has --fresh
    stop_timeout: Annotated[float, duration_setting("How long a stop may take to write unwritten pages.")] = 30.0

    @property
    def devices(self) -> tuple[DeviceOptions, ...]:
        """The devices, in their order. There are as many sizes as folders, or one for all."""
        if not self.size:
            return ()
        sizes = self.size * len(self.path) if len(self.size) == 1 else self.size
        each = zip(self.path, sizes, strict=True)
        return tuple(DeviceOptions(path, size, self.environments, self.store, self.compress) for path, size in each)

    @property
    def total_size(self) -> int:
        """The size of all devices together."""
        return sum(device.size for device in self.devices)
