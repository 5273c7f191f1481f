"""What a device needs of its surroundings: what all devices of the tier share."""

from __future__ import annotations

from typing import Protocol

from pagetier.daemon.disk.backpressure import BackPressure
from pagetier.daemon.disk.commands_in_flight import PendingWrite
from pagetier.daemon.disk.pending_flushes import FolderFlushes
from pagetier.daemon.reads.lower_tier_reads import LowerTierReads
from pagetier.daemon.workers.worker_link import ChildWorkers
from pagetier.shm._core import WriteRule
from pagetier.tiers.worker_protocol import Wrote


class SharedWrites(Protocol):
    """What the devices share of writing: the choice of pages and devices, and the budget. See WriteBehind."""

    @property
    def rule(self) -> WriteRule:
        """The rule by which pages are written now."""

    def wrote(self, device: int, write: PendingWrite, report: Wrote) -> None:
        """Ends the writes of a device's command in the index, then sends the writes that are due to any device."""

    def note_work(self) -> None:
        """Takes note of whether pages are being written."""


class Surroundings(Protocol):
    """What a device needs of the tier around it. See DiskTier."""

    flushes: FolderFlushes
    reads: LowerTierReads
    backpressure: BackPressure
    workers: ChildWorkers

    @property
    def write_behind(self) -> SharedWrites:
        """What the devices share of writing."""

    @property
    def is_open(self) -> bool:
        """Whether pages can be found on a device."""

    def changed(self) -> None:
        """Publishes the status, because a device has changed."""

    def worker_ends(self) -> None:
        """Takes note that the worker of a device ended, before the index forgets its pages."""
