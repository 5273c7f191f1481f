"""The status of one device: what is published of it, and the log lines when it opens and goes down."""

from __future__ import annotations

import logging

import msgspec

from pagetier.daemon.config.disk_options import DeviceOptions
from pagetier.daemon.config.validation import beyond_its_disk
from pagetier.daemon.disk.surroundings import Surroundings
from pagetier.daemon.status.disk_report import DeviceReport, Standing, with_state
from pagetier.shm._core import Owner
from pagetier.shm.log_format import event
from pagetier.shm.units import counted, format_size
from pagetier.tiers.base import TierState

log = logging.getLogger("pagetierd.disk")

_REBUILT = "rebuilt empty"  # begins what a worker says of a tier of which it has dropped pages


class DeviceStatus:
    """The status of a device. On the loop's thread only.

    Attributes:
        report: The status, as it was noted last.
    """

    def __init__(self, number: int, options: DeviceOptions, owner: Owner, tier: Surroundings) -> None:
        self._number = number
        self._owner = owner
        self._tier = tier
        self.report = DeviceReport(folder=str(options.path))
        self._down = ""
        self._damaged = 0  # pages that earlier workers found damaged

    @property
    def is_open(self) -> bool:
        """Whether pages can be found on the device."""
        return self.report.standing is Standing.OPEN

    def note_opened(self, state: TierState) -> None:
        """Takes over the first state of a worker, which counts damaged pages from 0."""
        self._damaged = self.report.damaged
        self.note_state(state)

    def note_state(self, state: TierState) -> None:
        """Takes over the state that the worker sent, to be published with the next note."""
        self.report = with_state(self.report, state, self._damaged)

    def note(self, fault: str, **news: object) -> None:
        """Takes over the fields in `news` and what the index has of the device, and publishes the status.

        Args:
            fault: The current fault, "" if there is none: then a device that is down keeps the reason for that.
            news: Fields of the report. A trouble among them counts more than the current fault.
        """
        known = self.report.trouble if not self.is_open and "standing" not in news else ""
        usage = self._owner.disk_device(self._number)
        news["trouble"] = news.get("trouble") or fault or known
        stored, frame = usage.used_slots * usage.slot_bytes, self._owner.header().frame_bytes
        news |= {"used_frames": -(-stored // frame), "pages": usage.pages, "bytes": usage.bytes}
        news |= {"stored_bytes": stored}
        self.report = msgspec.structs.replace(self.report, **news)
        self._tier.changed()

    def log_open(self, options: DeviceOptions, seconds: float) -> None:
        """Logs that the device is open, so many seconds after its worker was started."""
        self._down = ""
        usage, frame = self._owner.disk_device(self._number), self._owner.header().frame_bytes
        emptied = self.report.opened.startswith(_REBUILT)
        log.log(
            logging.WARNING if emptied else logging.INFO,
            "disk tier in %s: %s, %s of %s in %s frames (cap %s), %s; ready after %.2f s",
            options.path,
            counted(usage.pages, "page"),
            format_size(usage.bytes),
            format_size(usage.slots * usage.slot_bytes),
            f"{usage.slots * usage.slot_bytes // frame:,}",
            format_size(options.size),
            self.report.opened,
            seconds,
            extra=event("disk_open", pages=usage.pages),
        )
        if too_large := self.too_large(options):
            log.warning("%s", too_large, extra=event("disk_size"))

    def log_down(self, why: str) -> None:
        """Logs why the device is down, once for each reason until it opens: further workers fail for the same one."""
        if why == self._down:
            return
        self._down = why
        if self._tier.is_open:
            line = "the disk tier in %s is down: %s; its pages are misses until it is back"
            log.warning(line, self.report.folder, why, extra=event("disk_device_down"))
        else:
            log.warning("no disk tier: %s; serving from memory only", why, extra=event("disk_down"))

    def too_large(self, options: DeviceOptions) -> str:
        """Returns a warning if the device may outgrow its file system, else ""."""
        room = self.report.disk_free + self.report.file_bytes
        return beyond_its_disk(options, room) if self.report.disk_total else ""
