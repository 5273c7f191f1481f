"""The stores of the disk tier that tests use: those of `disk.store`, and the files store with compressed pages."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

from pagetier.tiers.capacity import Compress, StoreName
from pagetier.tiers.disk.store import DiskStore
from pagetier.tiers.worker.open_store import store_class

StoreKind: TypeAlias = Literal["lmdb", "files", "compressed"]
STORE_KINDS: Final[tuple[StoreKind, ...]] = get_args(StoreKind)
_OF: Final[dict[StoreKind, tuple[StoreName, Compress]]] = {
    "lmdb": ("lmdb", "off"),
    "files": ("files", "off"),
    "compressed": ("files", "on"),
}


def settings_of(kind: StoreKind) -> tuple[str, ...]:
    """Returns the arguments of a daemon with such a disk tier."""
    store, compress = _OF[kind]
    return ("--set", f"disk.store={store}", "--set", f"disk.compress={compress}")


def open_kind(kind: StoreKind, folder: Path, cap: int, frame_bytes: int, environments: int, **more: float) -> DiskStore:
    """Opens a folder with such a store. Raises TierError."""
    return store_class(*_OF[kind])(folder, cap, frame_bytes, environments, **more)
