"""The status of the daemon and its disk tier: JSON in the header of the index."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec

from pagetier.daemon.common.eviction_report import EvictionReport
from pagetier.daemon.common.huge_page_report import HugePageReport
from pagetier.shm._core import STATUS_BYTES
from pagetier.tiers.base import TierState

WORKER_NAME: Final = "disk tier"  # the name of the worker's attachment, whose token is 0
_LONGEST_TEXT = 400


class Standing(Enum):
    """The state of the disk tier."""

    NONE = "none"
    STARTING = "starting"
    OPEN = "open"
    RESIZING = "resizing"
    DOWN = "down"


class BudgetReport(msgspec.Struct, frozen=True, kw_only=True):
    """The write budget.

    Attributes:
        per_day: Bytes that may be written a day.
        left: Bytes that may be written now.
        skipped_bytes: Bytes that were not written because the budget was spent.
    """

    per_day: int
    left: int
    skipped_bytes: int


class DiskReport(msgspec.Struct, frozen=True, kw_only=True):
    """The status of the disk tier.

    The fields are keys of `pagetier stats --json`: new ones may be added, none is renamed.

    Attributes:
        standing: none, starting, open, resizing or down.
        trouble: Why the tier is down, or its last fault; "" if there is none.
        folder: The folder of the tier.
        write: The rule for writing, `disk.write`.
        opened: How the tier was opened.
        note: What the worker reported about the files.
        cap: The largest size of the tier's files.
        room_frames: The number of frames that fit under the cap.
        file_bytes: The size of the tier's files.
        disk_free: Free bytes of the file system.
        disk_total: The size of the file system.
        last_sync: The time of the last sync in seconds since 1970; 0 if there was none.
        clean: Nothing was written since the last sync.
        damaged: Pages that failed their checksum.
        device_bytes: Bytes that this daemon's workers handed to the file system, trees included.
        restarts: Restarts of the worker.
        budget: The write budget, None if there is no limit.
    """

    standing: Standing = Standing.NONE
    trouble: str = ""
    folder: str = ""
    write: str = ""
    opened: str = ""
    note: str = ""
    cap: int = 0
    room_frames: int = 0
    file_bytes: int = 0
    disk_free: int = 0
    disk_total: int = 0
    last_sync: float = 0.0
    clean: bool = True
    damaged: int = 0
    device_bytes: int = 0
    restarts: int = 0
    budget: BudgetReport | None = None

    def shortened(self) -> DiskReport:
        """Returns the report with texts that fit into the header."""
        short = {name: getattr(self, name)[:_LONGEST_TEXT] for name in ("trouble", "opened", "note", "folder")}
        return msgspec.structs.replace(self, **short)


class Phase(Enum):
    """The phase of a daemon's life. Engines can attach while it serves or stops."""

    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"


class PhaseProgress(msgspec.Struct, frozen=True):
    """How far the daemon is with its phase: bytes done of all bytes. Both are 0 if nothing is to be done."""

    phase: Phase = Phase.STARTING
    done: int = 0
    total: int = 0

    @property
    def share(self) -> float:
        """How far the daemon is with its phase, from 0 to 1. A start begins with 0, a phase without bytes is at 1."""
        if self.total:
            return round(self.done / self.total, 3)
        return float(self.phase is not Phase.STARTING)


class HintReport(msgspec.Struct, frozen=True, kw_only=True):
    """Hints of engines and operators, since the daemon started. Pages count once for each hint that names them.

    The fields are keys of `pagetier stats --json`: new ones may be added, none is renamed.

    Attributes:
        pages: Pages that hints named.
        applied: Pages that had the hint afterwards.
        absent: Pages that were in no tier or, to be kept, not in memory or beyond evict.keep_share.
        without_effect: Pages that hints named while evict.policy was lru.
        wrong: Hints that were ignored as a whole, for example with a negative time to live.
        kept_bytes: Bytes of the frames that are kept now.
        keeps_ended_early: Requests to keep pages that ended before their time, in favour of others.
    """

    pages: int = 0
    applied: int = 0
    absent: int = 0
    without_effect: int = 0
    wrong: int = 0
    kept_bytes: int = 0
    keeps_ended_early: int = 0


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon publishes about itself: its phase, order of eviction, hints, huge pages, and its disk tier."""

    progress: PhaseProgress = PhaseProgress()
    eviction: EvictionReport = EvictionReport()
    disk: DiskReport = DiskReport()
    hints: HintReport = HintReport()
    huge_pages: HugePageReport = HugePageReport()

    def pack(self) -> bytes:
        """Returns the status as JSON, shortened to fit into the header."""
        reports = (self.disk, self.disk.shortened(), DiskReport(standing=self.disk.standing))
        texts = [msgspec.json.encode(msgspec.structs.replace(self, disk=disk)) for disk in reports]
        return next(text for text in texts if len(text) <= STATUS_BYTES)


def with_state(report: DiskReport, state: TierState) -> DiskReport:
    """Returns the report with the state that the worker sent."""
    return msgspec.structs.replace(
        report,
        opened=state.opened,
        note=state.note,
        cap=state.cap_bytes,
        room_frames=state.room,
        file_bytes=state.file_bytes,
        disk_free=state.disk_free,
        disk_total=state.disk_total,
        last_sync=state.last_sync / 1e9,
        clean=state.clean,
        damaged=state.damaged,
    )


def unpack(text: bytes | None) -> DaemonStatus:
    """Returns the status in the header; that of a daemon that starts if none was published yet."""
    return msgspec.json.decode(text, type=DaemonStatus) if text else DaemonStatus()


class DiskCounters(msgspec.Struct, frozen=True):
    """Counters of the disk tier's work.

    Attributes:
        report: The published status.
        writing: Pages that are being written.
        write_seconds: How long writes were in progress since the daemon started.
        read_seconds: How long reads were in progress since the daemon started.
    """

    report: DiskReport
    writing: int
    write_seconds: float
    read_seconds: float


class Busy:
    """A clock that runs while commands are in progress."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._before = 0.0

    def note(self, commands: int) -> None:
        """Sets the number of commands in progress."""
        if commands and self._since is None:
            self._since = self._clock()
        elif not commands:
            self._before, self._since = self.seconds, None

    @property
    def seconds(self) -> float:
        """The seconds so far."""
        return self._before + (self._clock() - self._since if self._since is not None else 0.0)
