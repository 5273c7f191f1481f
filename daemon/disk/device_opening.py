"""The opening of a device: what its worker reports before the daemon may write to the device.

A worker reports in this order: Opened, what was saved of lookups, the inventory in parts, the histories in parts,
Complete. While it does, the device is open in the index but not complete, and nothing is written to it or dropped from
it. Each part is loaded when it arrives, so engines find its pages from then on, and the worker already reads them.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from enum import Enum
from functools import cached_property
from threading import Thread
from typing import TYPE_CHECKING, Final

from pagetier.daemon.common import loop_clock
from pagetier.daemon.disk.commands_in_flight import STALLED_S
from pagetier.daemon.disk.pending_flushes import DeviceFlushes
from pagetier.shm import clock
from pagetier.shm._core import Owner, WriteRule
from pagetier.shm.failpoints import point
from pagetier.shm.log_format import event
from pagetier.shm.protocol import ProtocolError
from pagetier.tiers.capacity import slot_bytes_of
from pagetier.tiers.worker_protocol import (
    Complete,
    HistoryPart,
    InventoryPart,
    Opened,
    OpenFailed,
    Report,
    SavedLookups,
    Trust,
)

if TYPE_CHECKING:
    from pagetier.daemon.disk.inventory import Inventory

log = logging.getLogger("pagetierd.disk")

_NS: Final = 1e9


class OpeningStage(Enum):
    """How far a worker is with opening its device and reporting the inventory."""

    STARTED = 0
    OPENED = 1
    COMPLETE = 2


class DeviceOpening:
    """The opening of a device by one worker. On the loop's thread only.

    Attributes:
        stage: How far the worker is.
        refused: It could not open the device, and no other worker is expected to.
        unverified: It ended because the next worker has to verify the files first.
    """

    def __init__(self, owner: Owner, device: int, flushes: DeviceFlushes) -> None:
        self._owner = owner
        self._device = device
        self._flushes = flushes
        self.stage = OpeningStage.STARTED
        self._expected = 0
        self._began = loop_clock.now()
        self.refused = False
        self.unverified = False

    @cached_property
    def _inventory(self) -> Inventory:
        return _inventory_class()(self._owner, self._flushes, self._device)

    def hear(self, report: Report, rule: WriteRule) -> None:
        """Handles a report.

        Args:
            report: The report of the worker.
            rule: The rule by which pages are written once the device is open.

        Raises:
            ProtocolError: The report is invalid now.
        """
        match report, self.stage:
            case Opened(), OpeningStage.STARTED:
                # The index has no page of the device yet. From now on pages in memory count as unwritten, because the
                # device may take them, although none is sent to it before its inventory is loaded.
                self._owner.disk_open(report.capacity, rule, self._device, self._slot_bytes(report))
                self.stage, self._expected = OpeningStage.OPENED, report.pages
                point("disk.opened")
            case SavedLookups(), OpeningStage.OPENED:
                self._restore_lookups(report.data)
            case InventoryPart(), OpeningStage.OPENED:
                self._inventory.add(report)
            case HistoryPart(), OpeningStage.OPENED:
                self._inventory.add_histories(report)
            case Complete(), OpeningStage.OPENED:
                self.stage = OpeningStage.COMPLETE
            case OpenFailed(), _:  # the process keeps the reason for the supervisor, and the end of the worker follows
                self.unverified = report.trust is not Trust.AS_LEFT  # the next worker verifies the files, then opens
                self.refused = self.stage is not OpeningStage.COMPLETE and not self.unverified
            case _:
                raise ProtocolError(f"{type(report).__name__} at the wrong time")

    def complete(self) -> tuple[bytes, int]:
        """Ends the opening: all pages of the device are in the index.

        Pages that were flushed while the device was away did not come back: the first command drops them. Pages that
        were flushed since their part arrived are among the drops that the index lists.

        Returns:
            The keys of all these pages, and the latest stamp of a page on the device, 0 if there is none.
        """
        self._owner.disk_complete(self._device)
        point("disk.known")
        return bytes(self._inventory.flushed), self._inventory.newest

    def stalled(self) -> str:
        """Returns that the worker, which runs, has not opened the device for long; "" if it has.

        It may verify, copy or shrink the files, which takes minutes, or the disk may hang: nothing tells which.
        """
        if self.stage is OpeningStage.STARTED and self.seconds > STALLED_S:
            return f"still being opened after {self.seconds:.0f} s: files are verified, or the disk has not answered"
        return ""

    def give_up(self) -> None:
        """Takes note that the worker ended: if it has not opened the device by now, it could not."""
        self.refused |= self.stage is OpeningStage.STARTED and not self.unverified

    def _slot_bytes(self, opened: Opened) -> int:
        slot_bytes = opened.state.slot_bytes
        if slot_bytes not in {0, slot_bytes_of(self._owner.header().frame_bytes)}:
            raise ProtocolError(f"Opened: slots of {slot_bytes} bytes")
        return slot_bytes

    @property
    def expected_pages(self) -> int:
        """How many pages the worker is about to report; 0 if that is unknown, or all were reported."""
        return 0 if self.stage is OpeningStage.COMPLETE else self._expected

    @property
    def seconds(self) -> float:
        """How long ago the worker was started."""
        return loop_clock.now() - self._began

    def _restore_lookups(self, lookups: bytes) -> None:
        if not self._owner.restore_lookups(lookups):
            line = "what the disk has of earlier lookups is damaged, or of another format or frame size: it is ignored"
            log.warning(line, extra=event("lookups_dropped"))


def _inventory_class() -> type[Inventory]:
    """Returns the class of inventories. The first call imports numpy, which a daemon without a disk does not need."""
    from pagetier.daemon.disk.inventory import Inventory

    return Inventory


def import_ahead() -> None:
    """Imports numpy while a worker opens its device and engines are served: they would wait at the first part."""
    with suppress(RuntimeError):  # "can't start new thread": the first part imports it
        Thread(target=_inventory_class, name="pagetierd-import", daemon=True).start()


def stamp_offset(newest: int) -> int:
    """Returns the difference between ticks and stamps, which order the pages on disk across restarts of the host.

    A later write gets a later stamp even if the host's clock was set back, or is wrong until the network is up.
    Otherwise the newest pages would be the first to leave the disk.
    """
    return max(int(clock.date() * _NS), newest) - clock.now_ns()
