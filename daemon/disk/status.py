"""What the disk tier says of itself, for who looks: a text in the index's header, in JSON."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum

import msgspec

from pagetier.tiers.base import TierState

_MOST_BYTES = 2048
_LONGEST_TEXT = 400


class Standing(Enum):
    """How the disk tier is."""

    NONE = "none"
    STARTING = "starting"
    OPEN = "open"
    DOWN = "down"


class BudgetReport(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that may be written a day, and those that are left now. spared_bytes: not written for want of them."""

    per_day: int
    left: int
    spared_bytes: int


class DiskReport(msgspec.Struct, frozen=True, kw_only=True):
    """The disk tier. The fields are keys of `pagetier stats --json`: they are added to, never renamed.

    standing: none, starting, open or down; trouble: why it is down, or what went wrong last, "" if nothing did.
    write: the rule for writing. opened: how it was found. file_bytes: what its files take; cap: what they may take.
    disk_free, disk_total: of the file system. last_sync: seconds since 1970, 0 if never; clean: nothing was written
    since. device_bytes: handed to the file system by this daemon's workers, trees included. restarts: of the worker.
    """

    standing: Standing = Standing.NONE
    trouble: str = ""
    folder: str = ""
    write: str = ""
    opened: str = ""
    note: str = ""
    cap: int = 0
    file_bytes: int = 0
    disk_free: int = 0
    disk_total: int = 0
    last_sync: float = 0.0
    clean: bool = True
    damaged: int = 0
    device_bytes: int = 0
    restarts: int = 0
    budget: BudgetReport | None = None

    def pack(self) -> bytes:
        """As bytes, short enough for the header."""
        packed = msgspec.json.encode(self)
        if len(packed) <= _MOST_BYTES:
            return packed
        short = {name: getattr(self, name)[:_LONGEST_TEXT] for name in ("trouble", "opened", "note", "folder")}
        packed = msgspec.json.encode(msgspec.structs.replace(self, **short))
        return packed if len(packed) <= _MOST_BYTES else DiskReport(standing=self.standing).pack()


def with_state(report: DiskReport, state: TierState) -> DiskReport:
    """The report with what the worker told."""
    return msgspec.structs.replace(
        report,
        opened=state.opened,
        note=state.note,
        cap=state.cap_bytes,
        file_bytes=state.file_bytes,
        disk_free=state.disk_free,
        disk_total=state.disk_total,
        last_sync=state.last_sync / 1e9,
        clean=state.clean,
        damaged=state.damaged,
    )


def unpack(text: bytes | None) -> DiskReport:
    """What is in the header; nothing where nobody wrote anything yet."""
    return msgspec.json.decode(text, type=DiskReport) if text else DiskReport()


class DiskCounters(msgspec.Struct, frozen=True):
    """writing: pages that are being written now. write_seconds, read_seconds: how long this daemon's disk was at it."""

    report: DiskReport
    writing: int
    write_seconds: float
    read_seconds: float


class Busy:
    """A clock that runs while there are orders that were not answered."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._before = 0.0

    def note(self, orders: int) -> None:
        """So many are open now."""
        if orders and self._since is None:
            self._since = self._clock()
        elif not orders:
            self._before, self._since = self.seconds, None

    @property
    def seconds(self) -> float:
        """So far."""
        return self._before + (self._clock() - self._since if self._since is not None else 0.0)
