"""A disk tier of the daemon whose workers are not started: the test sends their reports."""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec

from pagetier.daemon.config.schema import Config
from pagetier.daemon.disk.disk_tier import DiskTier
from pagetier.daemon.reads.lower_tier_reads import LowerTierReads
from pagetier.daemon.status.publisher import StatusPublisher
from pagetier.shm._core import Owner
from pagetier.shm.segments import Segments


class _OwnerOnly(msgspec.Struct):
    """Segments of which only a worker would need more than the owner."""

    owner: Owner


def disk_tier(owner: Owner, config: Config, loop: asyncio.AbstractEventLoop) -> DiskTier:
    """Returns a disk tier above this index. Nothing starts its workers."""
    reads = LowerTierReads(owner, int(config.store.reservation_timeout * 1e9), loop)
    return DiskTier(cast("Segments", _OwnerOnly(owner)), config, reads, StatusPublisher(owner), loop)
