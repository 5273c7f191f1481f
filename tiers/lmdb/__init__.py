"""The disk tier: LMDB behind the interface of a tier.

It performs best in a process whose environment sets MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ high and
MALLOC_ARENA_MAX to 1: LMDB allocates what it writes, frame by frame, in several threads.
"""

from pagetier.tiers.lmdb.tier import LmdbTier
from pagetier.tiers.lmdb.tier_folder import doubt, give_up

__all__ = ["LmdbTier", "doubt", "give_up"]
