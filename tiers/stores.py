"""Maps the names of stores to the disk tiers that use them."""

from __future__ import annotations

from pagetier.tiers.capacity import Store
from pagetier.tiers.disk.tier import LocalTier


def tier_of(store: Store) -> type[LocalTier]:
    """Returns the tier of a store. Only its libraries are loaded."""
    if store == "files":
        from pagetier.tiers.frame_files import FilesTier

        return FilesTier
    from pagetier.tiers.lmdb import LmdbTier

    return LmdbTier
