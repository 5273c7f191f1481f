"""Opens a store of the disk tier: the one place that knows all of them."""

from __future__ import annotations

import logging
from pathlib import Path

from pagetier.tiers.base import TierError
from pagetier.tiers.capacity import Compress, StoreName
from pagetier.tiers.disk import doubt, give_up
from pagetier.tiers.disk.other_settings import pages_of_other_settings
from pagetier.tiers.disk.store import DiskStore
from pagetier.tiers.disk_folder import OTHER_SETTINGS_REMEDY
from pagetier.tiers.worker_protocol import Serve, Trust

log = logging.getLogger("pagetier.tier")


def store_class(store: StoreName, compress: Compress = "off") -> type[DiskStore]:
    """Returns the class of a store. Only its libraries are loaded."""
    if store == "files":
        from pagetier.tiers.frame_files import CompressedFilesStore, FilesStore

        return FilesStore if compress == "off" else CompressedFilesStore
    from pagetier.tiers.lmdb import LmdbStore

    return LmdbStore


def open_as_trusted(command: Serve, frame_bytes: int) -> DiskStore:
    """Opens the requested store, after what the trust in its folder requires. Raises TierError."""
    folder = Path(command.folder)
    # A worker takes the folder as it was left. After a crash or a failed sync the next one verifies all files first.
    # If such workers crash as well, verification does not find the cause in the files, and they are discarded.
    if command.trust is Trust.PROVEN:
        doubt(folder)
    elif command.trust is Trust.NOTHING:
        log.warning("disk workers keep crashing on %s: discarding its contents", folder)
        give_up(folder)
    # The start refuses such pages, but it did not see those of a disk that hung, was mounted later or came by a reload.
    if not command.discards and (why := pages_of_other_settings(folder, command.store, frame_bytes)):
        raise TierError(f"{why}: {OTHER_SETTINGS_REMEDY}")
    return store_class(command.store, command.compress)(folder, command.cap, frame_bytes, command.environments)
